//! Chooses the class of a file when it is opened.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder_cache::FileNo;
use larder_class::{Choice, Class, Level, Subject};
use larder_io::program_of;
use larder_vfs::{Cred, Error, Ino, Kind, Medium, Result, StoredPart};

use crate::core::Core;
use crate::names::{last_path, on_handle};
use crate::node::Node;
use crate::write::{Due, UNLIMITED};

/// How long a reader of the attribute waits for the server: it may be away, and the reader may ask
/// about many files.
const PATIENCE: Duration = Duration::from_secs(2);

/// How durable a file is, and is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durability {
    /// The level that all of its bytes have reached.
    pub reached: Level,
    /// The strongest level that its class promises.
    pub promised: Option<Level>,
    /// When the unsent bytes are sent to the server; `None` if there are none.
    pub due: Option<Due>,
}

impl std::fmt::Display for Durability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.line(self.reached.name()))
    }
}

impl Durability {
    /// A line with this word for the level that all bytes have reached.
    fn line(&self, level: &str) -> String {
        let promised = self.promised.map_or("nothing", Level::name);
        let due = self.due.map(|due| format!(" due={due}")).unwrap_or_default();
        format!("level={level} promised={promised}{due}")
    }
}

impl Core {
    /// The class of a file for the caller that opens it, or writes it without having it open.
    pub(crate) fn class_for(&self, node: &Node, cred: &Cred) -> Arc<Class> {
        let classes = &self.options.classes;
        if classes.rules().is_empty() && self.set_classes.is_empty() {
            return classes.mount().clone();
        }
        let program = classes.ask_for_program().then(|| program_of(cred.pid)).flatten();
        self.choose_class(node, Some((cred.uid, program.as_deref())), true).class
    }

    /// The class that a file of this name would have for the caller that makes it.
    pub(crate) fn class_of_name(&self, dir: &Node, name: &OsStr, cred: &Cred) -> Arc<Class> {
        let classes = &self.options.classes;
        if classes.rules().is_empty() && self.set_classes.is_empty() {
            return classes.mount().clone();
        }
        let program = classes.ask_for_program().then(|| program_of(cred.pid)).flatten();
        let nearest = self.class_in(dir);
        let choice = classes.choose(&Subject {
            path: &self.path_of(dir.ino).join(name),
            uid: cred.uid,
            size: 0,
            program: program.as_deref(),
            own: None,
            dir: nearest.as_ref().map(|(dir, name)| (dir.as_path(), name.as_str())),
        });
        choice.class
    }

    /// The class that a file would have for its owner if it had this name, and a class of its own.
    pub(super) fn class_with_name(
        &self,
        node: &Node,
        (dir, name): (&Node, &OsStr),
        own: Option<&str>,
    ) -> Arc<Class> {
        let (uid, size) = {
            let state = node.state();
            (state.known().attr.uid, state.attr().size)
        };
        let nearest = self.class_in(dir);
        let choice = self.options.classes.choose(&Subject {
            path: &self.path_of(dir.ino).join(name),
            uid,
            size,
            program: None,
            own,
            dir: nearest.as_ref().map(|(dir, name)| (dir.as_path(), name.as_str())),
        });
        choice.class
    }

    /// The class that was set for the files in a directory, and where.
    pub(super) fn class_in(&self, dir: &Node) -> Option<(PathBuf, String)> {
        let nearest = match self.set_classes.of(dir.ino) {
            Some(own) => Some((dir.ino, own)),
            None => self.set_classes.above(&self.cache, dir.ino),
        };
        nearest.map(|(ino, name)| (self.path_of(ino), name))
    }

    /// Where a file was last seen.
    pub(crate) fn path_of(&self, ino: Ino) -> PathBuf {
        last_path(&self.cache, FileNo(ino.0)).unwrap_or_default()
    }

    /// The class of a file that an earlier process opened: by its name on record, or else the class
    /// that all files have.
    pub(crate) fn class_on_record(&self, name: Option<&str>) -> Arc<Class> {
        let classes = &self.options.classes;
        match name {
            None => classes.mount().clone(),
            Some(name) => classes.get_or_strongest(name),
        }
    }

    /// The class of a file for its owner.
    pub(super) fn class_for_owner(&self, node: &Node) -> Choice {
        self.choose_class(node, None, true)
    }

    /// The class of a file for its owner if none was set for it itself.
    pub(super) fn class_without_own(&self, node: &Node) -> Choice {
        self.choose_class(node, None, false)
    }

    /// The class of a file for a user and the user's program, or for its owner; with or without the
    /// class that was set for the file itself.
    fn choose_class(
        &self,
        node: &Node,
        who: Option<(u32, Option<&OsStr>)>,
        with_own: bool,
    ) -> Choice {
        let (owner, size) = {
            let state = node.state();
            (state.known().attr.uid, state.attr().size)
        };
        let (uid, program) = who.unwrap_or((owner, None));
        let path = self.path_of(node.ino);
        let own = self.set_classes.of(node.ino).filter(|_| with_own);
        let dir: Option<(PathBuf, String)> = self
            .set_classes
            .above(&self.cache, node.ino)
            .map(|(ino, name)| (self.path_of(ino), name));
        self.options.classes.choose(&Subject {
            path: &path,
            uid,
            size,
            program,
            own: own.as_deref(),
            dir: dir.as_ref().map(|(dir, name)| (dir.as_path(), name.as_str())),
        })
    }

    /// How durable a file is now.
    pub(crate) fn durability(&self, node: &Node) -> Durability {
        let class = self.class_for_owner(node).class;
        let promised = class.promised.promised();
        let is_file = node.state().known().attr.kind == Kind::File;
        let unsent = self.file(node).unsent();
        let due = node.state().unsent().due(self.clock.instant());
        let due = due.filter(|_| unsent.bytes > 0);
        let awaited = || self.remote.deferring()?.awaited(&node.handle().ok()?);
        let awaited = awaited().filter(|name| name.due.is_some());
        let name_due = awaited.as_ref().and_then(|name| name.due);
        let name_due =
            name_due.map(|due| Due::in_time(due.saturating_duration_since(self.clock.instant())));
        let due = due.or(name_due);
        let reached = match unsent.bytes {
            0 if awaited.as_ref().is_some_and(|name| name.is_kept) => Level::Local,
            0 if awaited.is_some() => Level::Memory,
            // At least: where there is no memory it is on the server's disk.
            0 if class.is_volatile() && is_file => Level::Shared,
            0 => Level::Durable,
            _ if self.file(node).is_all_kept() => Level::Local,
            _ => Level::Memory,
        };
        Durability { reached, promised, due }
    }

    /// How durable a file is now, as a line. Asks the server where it has the bytes, if it has all.
    pub(crate) async fn durability_line(&self, node: &Arc<Node>) -> String {
        let durability = self.durability(node);
        let level = durability.reached.name();
        if durability.reached < Level::Shared || node.state().known().attr.kind != Kind::File {
            return durability.line(level);
        }
        let cred = self.caller(&Cred::root());
        let asked =
            async { on_handle!(self, &cred, node, handle => self.remote.stored(&cred, &handle)) };
        durability.line(match self.clock.timeout(PATIENCE, asked).await {
            Ok(Ok(parts)) => level_of(&parts),
            // It has them on its disk.
            Ok(Err(Error::NotSupported)) => level,
            Ok(Err(_)) | Err(_) => "unknown",
        })
    }

    /// Sets how soon bytes written to a file are sent: by the deadline of an open file's class, for
    /// as long as a file with that class is open.
    pub(crate) fn promise(&self, node: &Node, class: &Class) {
        self.unsent_promise(node, self.age_in(class));
    }

    /// How long the class lets bytes and names stay unsent; `None`: it sets no limit.
    pub(crate) fn age_in(&self, class: &Class) -> Option<Duration> {
        if class.stays_here() {
            return Some(UNLIMITED);
        }
        class.durable_within().filter(|time| *time > Duration::ZERO)
    }

    /// Fails for files that have no class: symbolic links and special files.
    pub(super) fn refuse_classless(&self, node: &Node) -> Result<()> {
        match node.state().known().attr.kind {
            Kind::File | Kind::Directory => Ok(()),
            _ => Err(Error::NotPermitted),
        }
    }
}

/// The word for the level of the weakest of these parts.
fn level_of(parts: &[StoredPart]) -> &'static str {
    match parts {
        parts if parts.iter().any(|part| part.is_lost) => "lost",
        parts if parts.iter().any(|part| part.medium == Medium::Memory) => Level::Shared.name(),
        _ => Level::Durable.name(),
    }
}
