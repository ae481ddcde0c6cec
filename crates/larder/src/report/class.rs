//! A daemon's reports of durability classes, and of what is not at the server.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Dirty;

/// A class of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClassShown {
    /// Its name.
    pub(crate) name: String,
    /// Files have it about which nothing else says anything.
    pub(crate) is_default: bool,
    /// What the mount promises.
    pub(crate) promise: String,
    /// What of that goes beyond the class, since the mount has no such level.
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
    /// When what is unsent goes to the server: in seconds (`5s`), `now`, or `next-mount`.
    pub(crate) due: Option<String>,
}

/// Answer to [`crate::control::Request::Explain`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Explained {
    /// The class of a file.
    pub(crate) class: String,
    /// Who decided on it.
    pub(crate) why: String,
    /// What the mount promises.
    pub(crate) promise: String,
    /// What of that goes beyond the class.
    pub(crate) raised: String,
    /// How durable the file is now.
    pub(crate) durable: Durable,
    /// What the server lacks of it.
    pub(crate) unsent: Dirty,
}

/// A file of which the server has not all.
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
    /// Why it could not be sent, if that was tried and nobody was told yet.
    pub(crate) problem: Option<String>,
    /// The name that it was to have, if somebody else has made that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kept_beside: Option<String>,
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

impl Explained {
    /// The part that is about the class.
    pub(crate) fn of_class(&self) -> String {
        let Explained { class, why, promise, raised, .. } = self;
        let raised =
            if raised.is_empty() { String::new() } else { format!("  raised   {raised}\n") };
        format!("  class    {class}: {why}\n  promise  {promise}\n{raised}")
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.of_class())?;
        writeln!(f, "  level    {}", self.durable)?;
        match self.unsent.bytes {
            0 => Ok(()),
            _ => writeln!(f, "  unsent   {}", self.unsent),
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
            Some(time) => write!(f, ", sent in {time}"),
        }
    }
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsaved { path, unsent, class, durable, problem, kept_beside } = self;
        let path = path.as_deref().unwrap_or("a file whose place is not known");
        let most = if unsent.bytes_is_bound { "at most " } else { "" };
        let class = class.as_deref().unwrap_or("not known");
        if let Some(name) = kept_beside {
            return writeln!(f, "{path}: kept beside {name}, which somebody else has made");
        }
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
        let unsent = Dirty { files: 1, bytes: 5, bytes_is_bound: true };
        let unsaved = Unsaved {
            path: Some("a/b".into()),
            unsent,
            class: Some("edited".into()),
            durable: durable.clone(),
            problem: Some("no space left on the server".into()),
            kept_beside: None,
        };
        assert_eq!(
            unsaved.to_string(),
            "a/b: at most 5 B unsent, class edited, memory, promised durable, sent in 23s; the last \
             try: no space left on the server\n"
        );
        let name = Unsaved { unsent: Dirty::default(), problem: None, ..unsaved.clone() };
        assert!(name.to_string().starts_with("a/b: its name is unsent, class edited, memory"));
        let kept = Unsaved { kept_beside: Some("c".into()), ..name };
        assert_eq!(kept.to_string(), "a/b: kept beside c, which somebody else has made\n");
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
