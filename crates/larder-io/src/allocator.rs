//! Where the memory of every program that links this crate comes from: jemalloc, in place of the C
//! library's malloc(3) (ADR 11).
//!
//! What is freed goes back to the machine a second later, as others allocate and free, and in a
//! process that called [`return_what_is_freed`](crate::memory::return_what_is_freed) also if none
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
