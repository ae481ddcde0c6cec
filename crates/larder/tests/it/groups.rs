//! Processes with a limit of memory.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cgroup with a limit of memory, until it is dropped.
pub(crate) struct Group {
    dir: PathBuf,
    limit: u64,
}

impl Group {
    /// One with this limit; `None` if this user may not make one.
    pub(crate) fn with_limit(limit: u64) -> Option<Group> {
        let name = format!("larder-test-{}-{limit}", std::process::id());
        for (top, file) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let dir = Path::new(top).join(&name);
            if fs::create_dir(&dir).is_ok() {
                let group = Group { dir, limit };
                if fs::write(group.dir.join(file), limit.to_string()).is_ok() {
                    return Some(group);
                }
            }
        }
        None
    }

    /// Bytes that its processes may still take. Pages of files that the kernel can drop at once
    /// count as free.
    pub(crate) fn left(&self) -> u64 {
        let read = |name: &str| fs::read_to_string(self.dir.join(name));
        let used = read("memory.usage_in_bytes").or_else(|_| read("memory.current")).unwrap();
        let stat = read("memory.stat").unwrap();
        let of =
            |word: &str| stat.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
        let inactive: u64 = of("total_inactive_file ").or_else(|| of("inactive_file ")).unwrap();
        (self.limit + inactive).saturating_sub(used.trim().parse().unwrap())
    }

    /// How many of its processes the kernel has killed for want of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        let read = |name: &str| fs::read_to_string(self.dir.join(name));
        let events = read("memory.oom_control").or_else(|_| read("memory.events")).unwrap();
        let mut lines = events.lines();
        lines.find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap()
    }

    /// The command, run in the group.
    pub(crate) fn running(&self, command: &Command) -> Command {
        let mut inner = Command::new("sh");
        let script = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.dir.display());
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
        self.dir.display().fmt(f)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel removes none that has processes.
        let _ = fs::remove_dir(&self.dir);
    }
}
