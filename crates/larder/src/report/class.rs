//! A daemon's reports of durability classes, and of data that is not at the server.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Dirty;

/// A class of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClassShown {
    /// Its name.
    pub(crate) name: String,
    /// It is the class of files for which nothing more specific is set.
    pub(crate) is_default: bool,
    /// What the mount promises.
    pub(crate) promise: String,
    /// The part of that beyond the class, where the mount has no such level.
    pub(crate) raised: String,
    /// The file that defines it; none: larder brings it.
    pub(crate) file: Option<String>,
    /// Why the mount cannot keep it.
    pub(crate) refused: Option<String>,
}

/// How durable a file is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Durable {
    /// The level that all of it has reached.
    pub(crate) level: String,
    /// The strongest level that its class promises.
    pub(crate) promised: Option<String>,
    /// When unsent data is sent to the server: in seconds (`5s`), `now`, `unmount`, or
    /// `next-mount`.
    pub(crate) due: Option<String>,
}

/// A file that the server does not have completely.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unsaved {
    /// Where it was last seen below the mountpoint, if that is known.
    pub(crate) path: Option<String>,
    /// What the server lacks.
    pub(crate) unsent: Dirty,
    /// Its class.
    pub(crate) class: Option<String>,
    /// How durable it is.
    pub(crate) durable: Durable,
    /// Why it could not be sent, if that was tried and not reported yet.
    pub(crate) problem: Option<String>,
    /// Where its changes are, if the server refused them after their writer got another answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) set_aside: Option<String>,
}

impl fmt::Display for ClassShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = if self.is_default { " (default)" } else { "" };
        match &self.refused {
            Some(why) => writeln!(f, "{}: not here: {why}", self.name)?,
            None => writeln!(f, "{}{default}: {}", self.name, self.promise)?,
        }
        if !self.raised.is_empty() {
            writeln!(f, "  raised   {}", self.raised)?;
        }
        match &self.file {
            Some(file) => writeln!(f, "  from     {file}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Durable { level, promised, due } = self;
        f.write_str(level)?;
        match promised {
            Some(promised) if promised != level => write!(f, ", promised {promised}")?,
            _ => {}
        }
        match due.as_deref() {
            None => Ok(()),
            Some("now") => f.write_str(", being sent"),
            Some("next-mount") => f.write_str(", the next mount sends it"),
            Some("unmount") => f.write_str(", sent at an unmount or a larder sync"),
            Some(time) => write!(f, ", sent in {time}"),
        }
    }
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsaved { path, unsent, class, durable, problem, set_aside } = self;
        if let Some(file) = set_aside {
            return writeln!(
                f,
                "{file}: the server refused this: copy what you need and remove it"
            );
        }
        let path = path.as_deref().unwrap_or("a file whose place is not known");
        let most = if unsent.bytes_is_bound { "at most " } else { "" };
        let class = class.as_deref().unwrap_or("not known");
        let what = match unsent.bytes {
            0 => "its name is".to_owned(),
            bytes => format!("{most}{}", crate::options::Bytes(bytes)),
        };
        write!(f, "{path}: {what} unsent, class {class}, {durable}")?;
        match problem {
            Some(problem) => writeln!(f, "; the last try: {problem}"),
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unsaved_is_a_line() {
        let durable = Durable {
            level: "memory".into(),
            promised: Some("durable".into()),
            due: Some("23s".into()),
        };
        let unsent = Dirty { files: 1, bytes: 5, bytes_is_bound: true, oldest_s: Some(7) };
        let unsaved = Unsaved {
            path: Some("a/b".into()),
            unsent,
            class: Some("edited".into()),
            durable: durable.clone(),
            problem: Some("no space left on the server".into()),
            set_aside: None,
        };
        assert_eq!(
            unsaved.to_string(),
            "a/b: at most 5 B unsent, class edited, memory, promised durable, sent in 23s; the last \
             try: no space left on the server\n"
        );
        let name = Unsaved { unsent: Dirty::default(), problem: None, ..unsaved.clone() };
        assert!(name.to_string().starts_with("a/b: its name is unsent, class edited, memory"));
        let aside = Unsaved { set_aside: Some("/c/set-aside/1.2_a".into()), ..Unsaved::default() };
        let told =
            "/c/set-aside/1.2_a: the server refused this: copy what you need and remove it\n";
        assert_eq!(aside.to_string(), told);
        for (due, told) in [
            (None, "memory, promised durable"),
            (Some("now"), "being sent"),
            (Some("next-mount"), "next mount"),
        ] {
            let told_so = Durable { due: due.map(str::to_owned), ..durable.clone() }.to_string();
            assert!(told_so.contains(told), "{told_so}");
        }
        let safe = Durable { level: "durable".into(), due: None, ..durable };
        assert_eq!(safe.to_string(), "durable");
    }

    #[test]
    fn a_class_is_shown() {
        let class = ClassShown {
            name: "log".into(),
            is_default: true,
            promise: "close waits for durable".into(),
            raised: "close waits for durable".into(),
            file: Some("/etc/larder/larder.toml".into()),
            refused: None,
        };
        assert_eq!(
            class.to_string(),
            "log (default): close waits for durable\n  raised   close waits for durable\n  from     \
             /etc/larder/larder.toml\n"
        );
        let refused =
            ClassShown { name: "two".into(), refused: Some("no".into()), ..ClassShown::default() };
        assert_eq!(refused.to_string(), "two: not here: no\n");
    }
}
