// A table of the driver's objects, such as pointers or arrays: one record for each, under one lock.
//
// The driver may give a handle to another thread as soon as a call has ended its object. So a hook removes the record
// before that call, and the Removal puts it back if the call fails.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "base/lifetime.hpp"
#include "base/reusing_map.hpp"

namespace curb::shim {

// Thread-safe. Functions that are passed in run under the lock unless it says otherwise, and take no lock.
template <class Key, class Record, class Hash = std::hash<Key>>
class Table : NoCopy {
  public:
    // Keeps a record out of the table. The destructor puts it back unless commit() was called.
    class [[nodiscard]] Removal : NoCopy {
      public:
        ~Removal() {
            if (record_) table_.put_back(key_, *record_);
        }
        // False if the key was unknown.
        explicit operator bool() const noexcept { return record_.has_value(); }
        const Record &operator*() const noexcept { return *record_; }
        const Record *operator->() const noexcept { return &*record_; }

        // Call it when the driver has ended the object. Returns the record, for the caller to credit.
        Record commit() noexcept { return *std::exchange(record_, std::nullopt); }

      private:
        friend Table;
        Removal(Table &table, const Key &key) noexcept : table_(table), key_(key), record_(table.take(key)) {}

        Table &table_;
        const Key key_;
        std::optional<Record> record_;
    };

    // Stores the record. Returns the former one of the key: the driver has reused it, so the caller must credit that
    // record. May throw std::bad_alloc; then nothing has changed.
    std::optional<Record> put(const Key &key, const Record &record) {
        const std::scoped_lock lock(mutex_);
        const auto [entry, added] = records_.try_emplace(key, record);
        count();
        return added ? std::nullopt : std::optional(std::exchange(entry->second, record));
    }

    // Returns a copy of the record; nullopt if the key is unknown. Takes no lock if the table is empty.
    std::optional<Record> find(const Key &key) noexcept {
        std::optional<Record> found;
        change(key, [&](const Record &record) {
            found = record;
            return true;
        });
        return found;
    }

    // Calls `change(record)`, and erases the record if that returns false. False if the key is unknown.
    template <class Change>
    bool change(const Key &key, Change change) noexcept {
        if (empty()) return false;
        const std::scoped_lock lock(mutex_);
        const auto entry = records_.find(key);
        if (entry == records_.end()) return false;
        if (!change(entry->second)) records_.erase(entry);
        count();
        return true;
    }
    // The same, but makes the record if the key is unknown. May throw std::bad_alloc; then nothing has changed.
    template <class Change>
    void make_and_change(const Key &key, Change change) {
        const std::scoped_lock lock(mutex_);
        const auto entry = records_.try_emplace(key, Record{}).first;
        if (!change(entry->second)) records_.erase(entry);
        count();
    }

    // Removes the record, for a driver call that may end the object.
    Removal remove(const Key &key) noexcept { return Removal(*this, key); }
    // Removes and returns the record of an object that has ended.
    std::optional<Record> take(const Key &key) noexcept {
        if (empty()) return std::nullopt;
        const std::scoped_lock lock(mutex_);
        const auto entry = records_.find(key);
        if (entry == records_.end()) return std::nullopt;
        std::optional<Record> taken(std::move(entry->second));
        records_.erase(entry);
        count();
        return taken;
    }
    // Removes every record for which `matches(record)`. Calls `taken(key, record)` with each, without the lock.
    // Allocates nothing.
    template <class Matches, class Taken>
    void take_all(Matches matches, Taken taken) noexcept {
        std::array<std::optional<std::pair<Key, Record>>, 64> batch;
        std::size_t size = batch.size();
        while (size == batch.size()) {
            size = take_some(matches, batch);
            for (std::size_t i = 0; i < size; ++i) taken(batch[i]->first, batch[i]->second);
        }
    }

    template <class Matches>
    [[nodiscard]] bool any_of(Matches matches) noexcept {
        const std::scoped_lock lock(mutex_);
        for (const auto &[key, record] : records_)
            if (matches(record)) return true;
        return false;
    }
    // Costs one load. A thread that got a key from the thread that put its record sees that the table is not empty.
    [[nodiscard]] bool empty() const noexcept { return size_.load(std::memory_order_relaxed) == 0; }

  private:
    // If the key has a record again, that one stays: the driver ended the object although it reported an error. If host
    // memory is exhausted, the charge stays without a record, and the next reconcile keeps the sum correct.
    void put_back(const Key &key, const Record &record) noexcept try {
        const std::scoped_lock lock(mutex_);
        records_.try_emplace(key, record);
        count();
    } catch (...) {
    }

    // Fills the batch and returns how many it has taken.
    template <class Matches, class Batch>
    std::size_t take_some(Matches matches, Batch &batch) noexcept {
        std::size_t size = 0;
        const std::scoped_lock lock(mutex_);
        for (auto entry = records_.begin(); entry != records_.end() && size < batch.size();) {
            if (!matches(entry->second)) {
                ++entry;
                continue;
            }
            batch[size++].emplace(entry->first, std::move(entry->second));
            entry = records_.erase(entry);
        }
        count();
        return size;
    }

    // The caller holds the lock.
    void count() noexcept { size_.store(records_.size(), std::memory_order_relaxed); }

    std::mutex mutex_;
    ReusingMap<Key, Record, Hash> records_;
    std::atomic<std::size_t> size_{0};  // a copy of records_.size(), for empty(), which takes no lock
};

}  // namespace curb::shim
