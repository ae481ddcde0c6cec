//! Identifies the current boot of the machine: state that survives a process but not a reboot
//! belongs to one boot.

/// Identifies a boot of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub u128);

impl BootId {
    /// The current boot, as the kernel identifies it (random(4)); `None` if it does not.
    pub fn current() -> Option<BootId> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok().map(BootId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_keeps_its_name() {
        assert!(BootId::current().is_some());
        assert_eq!(BootId::current(), BootId::current());
    }
}
