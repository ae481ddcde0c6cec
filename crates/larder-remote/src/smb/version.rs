//! Versions of the protocol, as options spell them.

use smb2::types::Dialect;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// SMB 2.1 (Windows 7).
    V2_1,
    /// SMB 3.0 (Windows 8).
    V3_0,
    /// SMB 3.0.2 (Windows 8.1).
    V3_0_2,
    /// SMB 3.1.1 (Windows 10).
    V3_1_1,
}

impl Version {
    pub(super) fn of(dialect: Dialect) -> Option<Version> {
        match dialect {
            Dialect::Smb2_0_2 => None,
            Dialect::Smb2_1 => Some(Version::V2_1),
            Dialect::Smb3_0 => Some(Version::V3_0),
            Dialect::Smb3_0_2 => Some(Version::V3_0_2),
            Dialect::Smb3_1_1 => Some(Version::V3_1_1),
        }
    }

    /// As `vers=` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Version::V2_1 => "2.1",
            Version::V3_0 => "3.0",
            Version::V3_0_2 => "3.0.2",
            Version::V3_1_1 => "3.1.1",
        }
    }
}

impl std::str::FromStr for Version {
    type Err = ();

    /// Reads the value of `vers=`; `3` means 3.0, and `3.02` and `3.11` are spellings of
    /// mount.cifs(8).
    fn from_str(text: &str) -> Result<Version, ()> {
        let all = [Version::V2_1, Version::V3_0, Version::V3_0_2, Version::V3_1_1];
        let text = match text {
            "3" => "3.0",
            "3.02" => "3.0.2",
            "3.11" => "3.1.1",
            text => text,
        };
        all.into_iter().find(|version| version.name() == text).ok_or(())
    }
}
