//! Gives up all privileges that the work does not need.

use std::io;

use rustix::process::{DumpableBehavior, getgid, getuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_res_gid, set_thread_res_uid,
};

/// Permanently takes the identity of the user that started the program, and keeps no capability but
/// `CAP_SYS_ADMIN`, if it has that. To be called while there is only one thread, because the ids of
/// Linux belong to threads.
///
/// # Errors
/// The kernel's; then the program must not serve.
pub fn keep_one() -> io::Result<()> {
    let (uid, gid) = (getuid(), getgid());
    set_keep_capabilities(true)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    set_keep_capabilities(false)?;
    let kept = capabilities(None)?.permitted & CapabilitySet::SYS_ADMIN;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    clear_ambient_capability_set()?;
    set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
