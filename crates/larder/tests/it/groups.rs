//! Processes with a limit of memory.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cgroup with a limit of memory, until it is dropped.
pub(crate) struct Group(PathBuf);

impl Group {
    /// One with this limit; `None` if this user may not make one.
    pub(crate) fn with_limit(bytes: u64) -> Option<Group> {
        let name = format!("larder-test-{}-{bytes}", std::process::id());
        for (top, limit) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let dir = Path::new(top).join(&name);
            if fs::create_dir(&dir).is_ok() {
                let group = Group(dir);
                if fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                    return Some(group);
                }
            }
        }
        None
    }

    /// Bytes that its processes use, without pages of files that the kernel can drop at once.
    pub(crate) fn used(&self) -> u64 {
        let read = |name: &str| fs::read_to_string(self.0.join(name));
        let used = read("memory.usage_in_bytes").or_else(|_| read("memory.current")).unwrap();
        let stat = read("memory.stat").unwrap();
        let of =
            |word: &str| stat.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
        let inactive: u64 = of("total_inactive_file ").or_else(|| of("inactive_file ")).unwrap();
        used.trim().parse::<u64>().unwrap().saturating_sub(inactive)
    }

    /// The command, run in the group.
    pub(crate) fn running(&self, command: &Command) -> Command {
        let mut inner = Command::new("sh");
        let script = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.0.display());
        inner.arg("-c").arg(script).arg("sh").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inner.env(name, value),
                None => inner.env_remove(name),
            };
        }
        inner
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel removes none that has processes.
        let _ = fs::remove_dir(&self.0);
    }
}
