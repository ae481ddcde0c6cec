//! What was done here and could not be done so at the server, as commands show it.

use std::fmt;
use std::path::Path;

use larder_cache::ConflictKind;
use serde::{Deserialize, Serialize};

/// A conflict on record, until a user clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Conflict {
    /// Its number, counted from 1; 0 from a daemon of an earlier version.
    #[serde(default)]
    pub(crate) number: u64,
    /// When it was found, in seconds since 1970.
    #[serde(default)]
    pub(crate) found_sec: u64,
    /// What was done here.
    #[serde(default)]
    pub(crate) what: Done,
    /// The object's path below the mountpoint, under the name that it got; empty if that is not
    /// known.
    pub(crate) path: String,
    /// The name that it was to have; its own, if it stays under that.
    pub(crate) wanted: String,
    /// Where the bytes that were written here are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) set_aside: Option<String>,
    /// The server's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// What was done here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Done {
    #[default]
    Made,
    Renamed,
    Linked,
    Removed,
    Attributes,
    Written,
    Refused,
    Elsewhere,
    Gone,
}

impl From<ConflictKind> for Done {
    fn from(kind: ConflictKind) -> Done {
        match kind {
            ConflictKind::Made => Done::Made,
            ConflictKind::Renamed => Done::Renamed,
            ConflictKind::Linked => Done::Linked,
            ConflictKind::Removed => Done::Removed,
            ConflictKind::Attributes => Done::Attributes,
            ConflictKind::Written => Done::Written,
            ConflictKind::Refused => Done::Refused,
            ConflictKind::Elsewhere => Done::Elsewhere,
            ConflictKind::Gone => Done::Gone,
        }
    }
}

impl Conflict {
    /// The same with its path below a mountpoint.
    pub(crate) fn at(self, mountpoint: &str) -> Conflict {
        if self.path.is_empty() {
            return self;
        }
        let path = Path::new(mountpoint).join(&self.path).to_string_lossy().into_owned();
        Conflict { path, ..self }
    }

    /// Its number, when it was found, and what it is.
    pub(crate) fn numbered(&self) -> String {
        format!("{} ({}) {self}", self.number, date(self.found_sec))
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { path, wanted, .. } = self;
        let path = if path.is_empty() { "a file whose place is not known" } else { path };
        let stays = Path::new(path).file_name() == Some(wanted.as_ref());
        match self.what {
            Done::Removed => {
                write!(f, "{path}: removed here, and changed by somebody else: it stays")?;
            }
            Done::Attributes => {
                write!(f, "{path}: changed by somebody else: attributes set here are given up")?;
            }
            Done::Written if !stays && self.set_aside.is_none() => {
                write!(
                    f,
                    "{path}: written here, and kept beside {wanted}, which somebody else has changed"
                )?;
            }
            Done::Written => write!(f, "{path}: written here, and changed by somebody else")?,
            Done::Elsewhere => {
                write!(
                    f,
                    "{path}: kept beside {wanted} by another machine, which had changed it, too"
                )?;
            }
            Done::Gone if stays => {
                write!(f, "{path}: what had this name here is gone at the server")?;
            }
            Done::Gone => {
                write!(f, "{path}: what was made in {wanted} here, which is gone at the server")?;
            }
            Done::Refused => write!(f, "{path}: the server refused what was written here")?,
            // As a daemon of an earlier version tells it.
            Done::Made if stays => {
                write!(f, "{path}: removed here, and changed by somebody else: it stays")?;
            }
            Done::Made | Done::Renamed | Done::Linked => {
                write!(f, "{path}: kept beside {wanted}, which somebody else has made")?;
            }
        }
        if let Some(reason) = &self.reason {
            write!(f, " ({reason})")?;
        }
        if let Some(file) = &self.set_aside {
            write!(f, "; it is kept in {file}")?;
        }
        Ok(())
    }
}

/// The date and time of a number of seconds since 1970, in UTC.
fn date(sec: u64) -> String {
    let time = i64::try_from(sec).ok().and_then(|sec| jiff::Timestamp::from_second(sec).ok());
    time.map_or_else(|| format!("second {sec}"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_is_told() {
        let made = Conflict {
            number: 3,
            found_sec: 1_795_000_000,
            path: "a/b.conflict-here-9".into(),
            wanted: "b".into(),
            ..Conflict::default()
        };
        let told = made.clone().at("/mnt").numbered();
        let beside = "/mnt/a/b.conflict-here-9: kept beside b, which somebody else has made";
        assert_eq!(told, format!("3 (2026-11-18T11:06:40Z) {beside}"));
        let stays = Conflict { what: Done::Removed, path: "a/b".into(), ..made.clone() };
        assert!(stays.to_string().ends_with(": it stays"));
        let set_aside = Some("/c/set-aside/1.2_a_b".into());
        let aside = Conflict { what: Done::Written, set_aside, ..stays };
        let told =
            "a/b: written here, and changed by somebody else; it is kept in /c/set-aside/1.2_a_b";
        assert_eq!(aside.to_string(), told);
        let beside = Conflict { what: Done::Written, ..made.clone() };
        let told =
            "a/b.conflict-here-9: written here, and kept beside b, which somebody else has changed";
        assert_eq!(beside.to_string(), told);
        let elsewhere = Conflict { what: Done::Elsewhere, ..made.clone() };
        assert!(elsewhere.to_string().contains(": kept beside b by another machine"));
        let gone = Conflict { what: Done::Gone, ..made.clone() };
        let told = "a/b.conflict-here-9: what was made in b here, which is gone at the server";
        assert_eq!(gone.to_string(), told);
        let gone = Conflict { path: "a/b".into(), ..gone };
        assert_eq!(gone.to_string(), "a/b: what had this name here is gone at the server");
        let refused = Conflict { what: Done::Refused, reason: Some("no space".into()), ..aside };
        assert!(refused.to_string().contains("was written here (no space); it is kept in /c/"));
        let unknown =
            Conflict { what: Done::Attributes, path: String::new(), ..Conflict::default() };
        let told = unknown.at("/mnt").to_string();
        assert!(told.starts_with("a file whose place is not known: changed by"), "{told}");
    }

    /// As a daemon of an earlier version tells it.
    #[test]
    fn a_conflict_without_a_number_is_understood() {
        let text = r#"{"path":"a/b","wanted":"b"}"#;
        let conflict: Conflict = serde_json::from_str(text).unwrap();
        assert!(conflict.to_string().ends_with(": it stays"));
    }
}
