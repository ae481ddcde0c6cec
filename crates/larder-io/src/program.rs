//! Names of the programs that make requests.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The name of a running process's program, as the kernel cuts it to 15 bytes (proc_pid_comm(5));
/// `None` if there is no such process.
pub fn program_of(pid: u32) -> Option<OsString> {
    let mut name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    Some(OsString::from_vec(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_name_and_one_that_is_none_has_none() {
        let own = program_of(std::process::id()).unwrap();
        assert!(!own.is_empty() && own.len() <= 15);
        assert_eq!(program_of(u32::MAX), None);
    }
}
