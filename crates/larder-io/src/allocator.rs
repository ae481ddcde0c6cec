//! Where the memory of every program that links this crate comes from: jemalloc, in place of the C
//! library's malloc(3) (ADR 11).
//!
//! What is freed goes back to the machine a second later, as others allocate and free, and in a
//! process that called [`return_what_is_freed`] also if none
//! does. A thread keeps no freed pieces for itself, since each retains a page: a daemon that was
//! busy and rests is about as small as one that was just started. `_RJEM_MALLOC_CONF` in the
//! environment has priority; jemalloc(3) names the settings.

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
static SETTINGS: &[u8; 85] =
    b"max_background_threads:1,dirty_decay_ms:1000,muzzy_decay_ms:0,narenas:4,tcache:false\0";

/// From now on a thread of the allocator returns what this process freed, a second later: for
/// processes that serve, and may rest after much work. A process with a thread cannot make a
/// namespace of users (unshare(2)), so no other one calls this.
pub fn return_what_is_freed() {
    if let Err(error) = tikv_jemalloc_ctl::background_thread::write(true) {
        tracing::warn!(%error, "memory that is freed is returned only while there is work");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_returns_what_is_freed() {
        // Other tests of the process may have begun threads, or ended them meanwhile.
        let threads = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
            let names = tasks.map(|task| name(task.unwrap()));
            names.filter(|name| name.as_ref().is_ok_and(|name| name == "jemalloc_bg_thd\n")).count()
        };
        assert_eq!(threads(), 0);
        return_what_is_freed();
        while threads() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(threads(), 1, "the settings are read");
    }
}
