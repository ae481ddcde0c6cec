//! Describes the machine of a run.

use std::fs;

use crate::record::Machine;

/// Describes this machine.
pub fn describe() -> Machine {
    let name = rustix::system::uname();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Machine {
        host: name.nodename().to_string_lossy().into_owned(),
        cpu: value(&cpuinfo, "model name", ':').unwrap_or_else(|| "unknown".to_owned()),
        cpus: std::thread::available_parallelism().map_or(1, Into::into),
        memory_bytes: rustix::system::sysinfo().totalram,
        kernel: name.release().to_string_lossy().into_owned(),
        distribution: value(&release, "PRETTY_NAME", '=').unwrap_or_else(|| "unknown".to_owned()),
        load: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
    }
}

/// The value of a key in lines of `key SEPARATOR value`, without quotes.
fn value(text: &str, key: &str, separator: char) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once(separator));
    let mut found = lines.filter(|(name, _)| name.trim() == key);
    found.next().map(|(_, value)| value.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_kernel_and_memory() {
        let machine = describe();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty());
        assert_eq!(value("a=1\nPRETTY_NAME=\"X 1\"\n", "PRETTY_NAME", '=').as_deref(), Some("X 1"));
    }
}
