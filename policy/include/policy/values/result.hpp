// A value, or an error instead. Errors are values in curb; no exception crosses a layer.
#pragma once

#include <utility>
#include <variant>

namespace curb::policy {

template <class T, class E>
class [[nodiscard]] Result {
  public:
    Result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
    Result(E error) : held_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool ok() const noexcept { return held_.index() == 0; }
    explicit operator bool() const noexcept { return ok(); }

    // Preconditions: value() and the operators need ok(), error() needs !ok().
    [[nodiscard]] T &value() & { return std::get<0>(held_); }
    [[nodiscard]] const T &value() const & { return std::get<0>(held_); }
    [[nodiscard]] T &&value() && { return std::get<0>(std::move(held_)); }
    [[nodiscard]] const E &error() const { return std::get<1>(held_); }
    [[nodiscard]] const T &operator*() const { return value(); }
    [[nodiscard]] const T *operator->() const { return &value(); }

  private:
    std::variant<T, E> held_;
};

}  // namespace curb::policy
