//! Reads the files of classes and rules, and fits their content to a mount.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::choose::{Class, Classes, DEFAULT, STRONGEST};
use crate::lifetime::Lifetimes;
use crate::offer::Offer;
use crate::specification::Specification;
use crate::written;

/// Longest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

const SHIPPED: &str = include_str!("shipped.toml");
const BUILD: &str = include_str!("build.toml");

/// Where classes and rules come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Files of the machine and of the user, which may be missing. A later file may redefine the
    /// classes of an earlier one, and its rules come first.
    pub files: Vec<PathBuf>,
    /// Rules of the mount, which come before all others.
    pub rules: Option<RuleFile>,
    /// The class of files that nothing else covers.
    pub class: Option<String>,
}

/// Rules of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleFile {
    /// The built-in rules for build trees.
    Build,
    /// A file.
    File(PathBuf),
}

/// Why there are no classes: a line for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(String);

/// The classes and rules read so far.
#[derive(Default)]
struct Loaded {
    specifications: BTreeMap<String, Specification>,
    /// For each class, the file that defined it last.
    files: BTreeMap<String, String>,
    rules: Vec<crate::Rule>,
    lifetimes: Lifetimes,
}

/// Reads the files, and fits their content to what a mount offers. Reads at most 1 MiB of each.
///
/// # Errors
/// A required file is missing or cannot be read; a file is invalid; the mount cannot provide a
/// class that a rule or [`Sources::class`] names. A class that the mount cannot provide and that
/// nothing names is left out.
pub fn load(sources: &Sources, offer: &Offer) -> Result<Classes, LoadError> {
    let mut loaded = Loaded::default();
    loaded.add("larder", SHIPPED)?;
    let strongest = loaded.specifications[STRONGEST].clone();
    loaded.files.clear();
    for path in &sources.files {
        if let Some(text) = text_of(path)? {
            loaded.add(&path.display().to_string(), &text)?;
        }
    }
    match &sources.rules {
        Some(RuleFile::Build) => loaded.add("rules=build", BUILD)?,
        Some(RuleFile::File(path)) => {
            let name = path.display().to_string();
            let text = text_of(path)?.ok_or_else(|| LoadError(format!("{name}: no such file")))?;
            loaded.add(&name, &text)?;
        }
        None => {}
    }
    loaded.fit(sources, offer, strongest)
}

impl Classes {
    /// The built-in classes, without rules, fitted to what a mount offers.
    ///
    /// # Errors
    /// If the mount cannot provide class `edited` or `critical`.
    pub fn shipped(offer: &Offer) -> Result<Classes, LoadError> {
        load(&Sources::default(), offer)
    }
}

impl Loaded {
    fn add(&mut self, file: &str, text: &str) -> Result<(), LoadError> {
        let read = written::read(file, text, &self.specifications, self.lifetimes);
        let read = read.map_err(|why| LoadError(format!("{file}: {why}")))?;
        for (name, specification) in read.classes {
            self.files.insert(name.clone(), file.to_owned());
            self.specifications.insert(name, specification);
        }
        self.rules.splice(0..0, read.rules);
        self.lifetimes = read.lifetimes;
        Ok(())
    }

    fn fit(
        self,
        sources: &Sources,
        offer: &Offer,
        strongest: Specification,
    ) -> Result<Classes, LoadError> {
        let Loaded { specifications, files, rules, lifetimes } = self;
        let fitted = |name: &str, wanted: &Specification| match offer.fit(wanted) {
            Ok((promised, raised)) => {
                let (raised, file) = (raised.join("; "), files.get(name).cloned());
                let is_retained = offer.retains(&promised);
                Ok(Arc::new(Class { name: name.to_owned(), promised, raised, file, is_retained }))
            }
            Err(refused) => Err(refused.to_string()),
        };
        let classes: BTreeMap<_, _> = specifications
            .iter()
            .map(|(name, wanted)| (name.clone(), fitted(name, wanted)))
            .collect();
        let strongest = fitted(STRONGEST, &strongest).map_err(LoadError)?;
        let mount = strongest.clone();
        let is_mount_typed = sources.class.is_some();
        let mut all = Classes { classes, rules, mount, is_mount_typed, strongest, lifetimes };
        all.mount = all.get(sources.class.as_deref().unwrap_or(DEFAULT)).map_err(LoadError)?;
        for rule in &all.rules {
            all.get(rule.class()).map_err(|why| LoadError(format!("{rule}: {why}")))?;
        }
        Ok(all)
    }
}

/// The text of a file; `None` if the file does not exist.
fn text_of(path: &Path) -> Result<Option<String>, LoadError> {
    let bad = |why: String| LoadError(format!("{}: {why}", path.display()));
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bad(error.to_string())),
    };
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| bad(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(bad("longer than 1 MiB".to_owned()));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| bad("no UTF-8 text".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::offer::OwnDisk;
    use crate::offer::tests::plain;
    use crate::{Deadline, Level, Step, Subject, Why};

    /// A folder with files of these texts, and the sources that name them in order.
    fn sources(texts: &[&str]) -> (tempfile::TempDir, Sources) {
        let folder = tempfile::tempdir().unwrap();
        let mut files = vec![folder.path().join("missing.toml")];
        for (text, number) in texts.iter().zip(1..) {
            let path = folder.path().join(format!("{number}.toml"));
            std::fs::write(&path, text).unwrap();
            files.push(path);
        }
        (folder, Sources { files, ..Sources::default() })
    }

    fn loaded(texts: &[&str]) -> Result<Classes, String> {
        let (folder, sources) = sources(texts);
        let loaded = load(&sources, &plain()).map_err(|error| error.to_string());
        loaded.map_err(|line| line.replace(&folder.path().display().to_string(), "DIR"))
    }

    fn subject(path: &str) -> Subject<'_> {
        Subject { path: Path::new(path), uid: 1000, size: 0, program: None, own: None, dir: None }
    }

    /// An offer of everything that the built-in classes ask for.
    fn everything() -> Offer {
        let copies = Level::ALL.into_iter().map(|level| (level, 2)).collect();
        Offer {
            whose: "a dream".into(),
            copies,
            waits_for: None,
            local: OwnDisk::AsAsked,
            sent_within: None,
            is_retaining: false,
        }
    }

    #[test]
    fn larder_brings_five_classes() {
        let classes = Classes::shipped(&everything()).unwrap();
        let lines: Vec<_> = classes
            .all()
            .map(|(name, class)| format!("{name}: {}", class.unwrap().promised))
            .collect();
        assert_eq!(
            lines,
            [
                "critical: durable at every write, close waits for durable, fsync for durable",
                "edited: close waits for durable, fsync for durable",
                "generated: local within 1 s, durable within 10 min, close waits for nothing, fsync for local",
                "scratch: close waits for nothing, fsync for nothing",
                "volatile: shared within 30 s, close waits for nothing, fsync for shared",
            ]
        );
        assert!(classes.all().all(|(_, class)| class.unwrap().raised.is_empty()));
        assert_eq!(classes.mount().name, "edited");
        // From the weakest to the strongest, each class keeps what those before it promise.
        let order = ["scratch", "generated", "edited", "critical"];
        for (at, name) in order.iter().enumerate() {
            for weaker in &order[..at] {
                let keeps = |strong: &str, weak: &str| {
                    let class = |name| classes.get(name).unwrap();
                    class(strong).promised.keeps(&class(weak).promised)
                };
                assert!(!keeps(weaker, name), "{weaker} {name}");
                // A close of an edited file brings to the server what is due here in a second and
                // there in ten minutes, but a file that stays open is no concern of its class.
                let is_exception = (*name, *weaker) == ("edited", "generated");
                assert_eq!(keeps(name, weaker), !is_exception, "{name} {weaker}");
            }
        }
    }

    /// So far no mount drops what a level refuses. A class that permits it says that it is kept,
    /// and none of the built-in classes permits it.
    #[test]
    fn a_class_that_lets_bytes_be_dropped_says_that_they_are_kept() {
        let text = "[class.a]\nlike = 'scratch'\non_error = 'discard'\n[class.b]\nlike = 'scratch'\n\
                    [class.c]\nlike = 'a'\non_error = 'keep'";
        let classes = loaded(&[text]).unwrap();
        let raised = |name: &str| classes.get(name).unwrap().raised.clone();
        assert_eq!(raised("a"), format!("{}; what a level refuses is kept", raised("scratch")));
        for other in ["b", "c"] {
            assert_eq!(raised(other), raised("scratch"), "{other}");
        }
        for (name, class) in classes.all() {
            let class = class.unwrap();
            assert_eq!(class.raised.contains("kept"), name == "a", "{name}");
            assert_eq!(class.promised.on_error, crate::OnError::Keep, "{name}");
        }
    }

    #[test]
    fn where_close_waits_for_the_server_the_weak_ones_are_raised() {
        let classes = Classes::shipped(&plain()).unwrap();
        assert_eq!(classes.mount().durable_within(), None);
        let within = |name| classes.get(name).unwrap().durable_within();
        assert_eq!(within("generated"), Some(Duration::from_secs(1)));
        assert_eq!(within("critical"), Some(Duration::ZERO));
        for (name, raised) in [
            ("critical", ""),
            ("edited", ""),
            (
                "generated",
                "what is to be local within 1 s is durable by then; close waits for durable; \
                 fsync waits for durable",
            ),
            ("scratch", "close waits for durable; fsync waits for durable"),
            (
                "volatile",
                "what is to be shared within 30 s is durable by then; close waits for durable; \
                 fsync waits for durable",
            ),
        ] {
            let class = classes.get(name).unwrap();
            assert_eq!(class.raised, raised, "{name}");
            assert!(class.promised.close >= Some(Level::Durable), "{name}");
            assert_eq!(class.is_synchronous(), name == "critical");
        }
    }

    #[test]
    fn what_a_mount_cannot_keep_is_refused_if_a_user_names_it() {
        let two = "[class.twice]\nlike = \"critical\"\ndurable = { copies = 2 }\n";
        let classes = loaded(&[two]).unwrap();
        let why = "class twice: an NFS mount has no level durable in 2 copies, nor a stronger one";
        assert_eq!(classes.get("twice"), Err(why.to_owned()));
        let ruled = format!("{two}[[rule]]\nglob = '*.db'\nclass = 'twice'");
        let refused = loaded(&[&ruled]).unwrap_err();
        assert_eq!(refused, format!("rule 1 of DIR/1.toml glob=*.db: {why}"));
        let (_folder, mut sources) = sources(&[two]);
        sources.class = Some("twice".into());
        assert_eq!(load(&sources, &plain()).unwrap_err().to_string(), why);
        assert_eq!(
            load(&sources, &everything()).unwrap().mount().promised.steps[&Level::Durable].copies,
            2
        );
        let unknown = loaded(&["[[rule]]\nclass = 'fast'"]).unwrap_err();
        assert!(unknown.contains("there is no class fast, but critical, edited"), "{unknown}");
        // Who makes the strongest one too strong for a mount still has one.
        let classes =
            loaded(&["[class.critical]\ndurable = { within = '0', copies = 2 }"]).unwrap();
        let lost = classes.choose(&Subject { own: Some("critical"), ..subject("a") });
        assert_eq!(lost.class.promised.write(), Some(Level::Durable));
        assert_eq!(lost.why, Why::Lost("critical".into()));
    }

    #[test]
    fn later_files_define_classes_anew_and_their_rules_come_first() {
        let machine = "[class.log]\ndurable = '5s'\n[[rule]]\nglob = '*.log'\nclass = 'log'\n\
                       [[rule]]\nglob = '*.c'\nclass = 'critical'";
        let user = "[class.log]\nlike = 'log'\ndurable = '1s'\nclose = 'durable'\n\
                    [[rule]]\nglob = '*.c'\nclass = 'edited'";
        let classes = loaded(&[machine, user]).unwrap();
        let log = classes.choose(&subject("a/b.log"));
        let step = Step { within: Deadline::Within(Duration::from_secs(1)), copies: 1 };
        assert_eq!(log.class.promised.steps[&Level::Durable], step);
        assert!(log.class.file.as_ref().unwrap().ends_with("2.toml"));
        assert!(matches!(log.why, Why::Rule(rule) if rule.contains("rule 1 of ")));
        assert_eq!(classes.choose(&subject("x.c")).class.name, "edited");
        assert_eq!(classes.rules().len(), 3);
    }

    #[test]
    fn rules_for_build_trees_are_there() {
        let sources = Sources { rules: Some(RuleFile::Build), ..Sources::default() };
        let classes = load(&sources, &plain()).unwrap();
        for (path, class) in [
            ("src/main.o", "generated"),
            ("target/debug/deps/x.rlib", "generated"),
            ("web/node_modules/a/index.js", "generated"),
            ("a/__pycache__/b.cpython-311.pyc", "generated"),
            (".notes.txt.swp", "generated"),
            ("dir/.#notes", "generated"),
            ("src/main.c", "edited"),
            ("target", "edited"),
            ("Makefile", "edited"),
        ] {
            assert_eq!(classes.choose(&subject(path)).class.name, class, "{path}");
        }
        assert!(!classes.ask_for_program());
    }

    /// Over all subsets of what can decide (file, directory, rule, mount): the one that comes first
    /// in the order does.
    #[test]
    fn the_rule_nearest_to_the_file_decides() {
        let rules = "[[rule]]\nglob = '*.c'\nclass = 'scratch'";
        for case in 0..16_u32 {
            let has = |bit: u32| case >> bit & 1 == 1;
            let (_folder, mut sources) = sources(&[rules][..usize::from(has(2))]);
            sources.class = has(3).then(|| "volatile".to_owned());
            let classes = load(&sources, &plain()).unwrap();
            let file = Subject {
                own: has(0).then_some("critical"),
                dir: has(1).then_some((Path::new("a"), "generated")),
                ..subject("a/b.c")
            };
            let choice = classes.choose(&file);
            let expected = match case {
                _ if has(0) => ("critical", Why::Own),
                _ if has(1) => ("generated", Why::Directory("a".into())),
                _ if has(2) => ("scratch", Why::Rule(classes.rules()[0].to_string())),
                _ if has(3) => ("volatile", Why::Mount),
                _ => ("edited", Why::Default),
            };
            assert_eq!((choice.class.name.as_str(), choice.why.clone()), expected, "{case}");
            assert_eq!(choice.why.to_string().lines().count(), 1);
        }
        let root = Subject { dir: Some((Path::new(""), "scratch")), ..subject("x") };
        let choice = loaded(&[]).unwrap().choose(&root);
        assert_eq!(choice.why.to_string(), "set for the root of the mount");
    }

    #[test]
    fn files_that_are_wrong_are_refused_in_one_line() {
        for (text, expected) in [
            ("[class.a]\ndurable = 'x'", "DIR/1.toml: class a: durable: \"x\" is no deadline"),
            ("[[rule]]\nglob = '['\nclass = 'edited'", "DIR/1.toml: rule 1: glob"),
            (
                "[[rule]]\nclass = 'edited'\n[[rule]]\nglob = '*.o'\nclass = 'critical'",
                "DIR/1.toml: rule 2: it never applies, since rule 1 does wherever it would",
            ),
            ("[mount]\n", "DIR/1.toml: line 1: unknown field `mount`"),
        ] {
            let why = loaded(&[text]).unwrap_err();
            assert!(why.starts_with(expected), "{why}");
            assert_eq!(why.lines().count(), 1);
        }
        let long = "#".repeat(FILE_BYTES_MAX as usize + 1);
        assert_eq!(loaded(&[&long]).unwrap_err(), "DIR/1.toml: longer than 1 MiB");
        let many = "[[rule]]\nglob = 'a'\nclass = 'edited'\n".repeat(1001);
        assert!(loaded(&[&many]).unwrap_err().contains("1001 rules"));
        let folder = tempfile::tempdir().unwrap();
        let missing = RuleFile::File(folder.path().join("x"));
        let missing = Sources { rules: Some(missing), ..Sources::default() };
        assert!(load(&missing, &plain()).unwrap_err().to_string().ends_with("x: no such file"));
        let not_text = folder.path().join("y");
        std::fs::write(&not_text, [0xff]).unwrap();
        let not_text = Sources { files: vec![not_text], ..Sources::default() };
        assert!(load(&not_text, &plain()).unwrap_err().to_string().ends_with("no UTF-8 text"));
        let a_folder = Sources { files: vec![folder.path().to_owned()], ..Sources::default() };
        assert!(load(&a_folder, &plain()).unwrap_err().to_string().contains("directory"));
    }
}
