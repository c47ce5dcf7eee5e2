// For a program that ThreadSanitizer's compiler has not made but whose libraries need its runtime: it sees no
// synchronisation of such a program, so what it would report of it is wrong.
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options();
extern "C" const char *__tsan_default_options() { return "report_bugs=0"; }
