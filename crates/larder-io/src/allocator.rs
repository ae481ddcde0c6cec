//! Where the memory of every program that links this crate comes from: jemalloc, in place of the C
//! library's malloc(3) (ADR 11).
//!
//! What is freed goes back to the machine by itself, a second later, by a thread of the allocator.
//! A thread keeps no freed pieces for itself, since each retains a page: a daemon that was busy and
//! rests is about as small as one that was just started. `_RJEM_MALLOC_CONF` in the environment has
//! priority; jemalloc(3) names the settings.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// jemalloc reads its settings from the symbol of this name, a pointer to a C string, before the
/// first allocation.
// SAFETY: nothing else has a symbol of this name: jemalloc declares it weak, for programs to
// define. A reference to bytes that end with zero is a C string, and is never written to.
#[allow(unsafe_code)]
#[used]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8; 108] =
    b"background_thread:true,max_background_threads:1,dirty_decay_ms:1000,muzzy_decay_ms:0,\
      narenas:4,tcache:false\0";

#[cfg(test)]
mod tests {
    #[test]
    fn one_thread_returns_freed_memory() {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        // A thread of another test may end meanwhile.
        let names: Vec<_> = names.flatten().collect();
        let found = names.iter().filter(|name| name.trim() == "jemalloc_bg_thd").count();
        assert_eq!(found, 1, "the settings are not read: {names:?}");
    }
}
