//! Makes a rule from the files that a command accesses.
//!
//! An input is what existed before the command changed it: its bytes are hashed at the end, or, if
//! the command is about to change the file, before that. A file of which the command only reads the
//! attributes (make(1) does, for its time) is an input, too, unless the command replaces it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use larder_io::watched::{Sighting, Touch};
use larder_rebuild::{Freshness, Hash, Input, Output, Program, Rule, RulePath};

use super::bytes::{Stamp, changed_ns, hash, stamp};
use super::library::Library;
use super::paths::{Of, Resolver, of};

/// The accesses of a command, so far.
pub(crate) struct Recorder<'l> {
    library: &'l Library,
    keeps_inputs: bool,
    resolver: Resolver,
    inputs: BTreeMap<PathBuf, Seen>,
    dirs: BTreeSet<PathBuf>,
    absent: BTreeSet<PathBuf>,
    programs: BTreeMap<PathBuf, Program>,
    /// Directories that were not there.
    made: BTreeSet<PathBuf>,
    /// Files that the command may have changed, and their content before if they existed.
    changed: BTreeMap<PathBuf, Option<Stamp>>,
    failed: Option<anyhow::Error>,
}

/// A file that was there.
struct Seen {
    stamp: Stamp,
    bytes: u64,
    mode: u32,
    changed_ns: i64,
    /// Its bytes matter, not only that it is there.
    is_read: bool,
    /// Its hash, if it was needed before the end.
    hash: Option<Hash>,
}

/// The user's options for a command.
pub(crate) struct Asked {
    pub(crate) freshness: Freshness,
    pub(crate) timeout: Duration,
    pub(crate) dir: PathBuf,
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: BTreeMap<OsString, OsString>,
}

impl Asked {
    /// A rule without inputs and outputs yet.
    ///
    /// # Errors
    /// If the working directory has no plain path.
    pub(crate) fn rule(&self, root: &Path) -> Result<Rule> {
        let dir = RulePath::of(&self.dir, root);
        Ok(Rule {
            system: super::here(),
            freshness: self.freshness,
            timeout: self.timeout,
            dir: dir.with_context(|| format!("{} is no plain path", self.dir.display()))?,
            command: self.command.clone(),
            environment: self.environment.clone(),
            inputs: BTreeMap::new(),
            programs: BTreeMap::new(),
            made: BTreeSet::new(),
            outputs: BTreeMap::new(),
            root: root.to_owned(),
        })
    }
}

impl<'l> Recorder<'l> {
    /// Of a command whose outputs are in this volume.
    pub(crate) fn new(library: &'l Library, freshness: Freshness) -> Recorder<'l> {
        Recorder {
            library,
            keeps_inputs: freshness == Freshness::Original,
            resolver: Resolver::default(),
            inputs: BTreeMap::new(),
            dirs: BTreeSet::new(),
            absent: BTreeSet::new(),
            programs: BTreeMap::new(),
            made: BTreeSet::new(),
            changed: BTreeMap::new(),
            failed: None,
        }
    }

    /// Processes an access that a call is about to make.
    pub(crate) fn take(&mut self, sighting: &Sighting) {
        let follows = !matches!(sighting.touch, Touch::Replace | Touch::MakeDir);
        if let Some(path) = self.resolver.resolve(&sighting.path, follows) {
            self.touch(path, sighting.touch);
        }
    }

    fn touch(&mut self, path: PathBuf, touch: Touch) {
        match of(&path, self.library.root()) {
            Of::Kernel => return,
            Of::System => return self.system(path, touch),
            Of::User => (),
        }
        let seen = match fs::symlink_metadata(&path) {
            Ok(seen) => seen,
            Err(_) => return self.nothing_there(path, touch),
        };
        if seen.is_dir() {
            if !self.made.contains(&path) {
                self.dirs.insert(path);
            }
        } else if seen.is_file() && !self.changed.contains_key(&path) {
            self.file(path, touch, &seen);
        }
    }

    fn system(&mut self, path: PathBuf, touch: Touch) {
        let seen =
            fs::metadata(&path).ok().filter(|seen| touch == Touch::Execute && seen.is_file());
        if let Some(seen) = seen {
            let program = Program { bytes: seen.size(), changed_s: seen.mtime() };
            self.programs.entry(path).or_insert(program);
        }
    }

    fn nothing_there(&mut self, path: PathBuf, touch: Touch) {
        match touch {
            Touch::Look | Touch::Read | Touch::Execute => _ = self.absent.insert(path),
            Touch::MakeDir => _ = self.made.insert(path),
            Touch::Change | Touch::Truncate | Touch::Replace => _ = self.changed.insert(path, None),
        }
    }

    fn file(&mut self, path: PathBuf, touch: Touch, now: &Metadata) {
        let changes = matches!(touch, Touch::Change | Touch::Truncate | Touch::Replace);
        let is_read = matches!(touch, Touch::Read | Touch::Execute | Touch::Change);
        if touch == Touch::MakeDir {
            return;
        }
        if is_read || !changes {
            let seen = self.inputs.entry(path.clone()).or_insert_with(|| Seen {
                stamp: stamp(now),
                bytes: now.size(),
                mode: now.permissions().mode() & 0o7777,
                changed_ns: changed_ns(now),
                is_read: false,
                hash: None,
            });
            seen.is_read |= is_read;
        }
        if changes {
            self.before_change(&path);
            self.changed.insert(path, Some(stamp(now)));
        }
    }

    /// A file that was read is hashed before the command changes it.
    fn before_change(&mut self, path: &Path) {
        let Some(seen) = self.inputs.get_mut(path).filter(|seen| seen.is_read) else { return };
        let kept = hash_and_keep(self.library, path, self.keeps_inputs);
        match kept {
            Ok(hash) => seen.hash = Some(hash),
            Err(error) => _ = self.failed.get_or_insert(error),
        }
    }

    /// The rule, after the last process has ended; `None` if no file of the volume was written.
    ///
    /// # Errors
    /// If another program changed an input, or an input cannot be read.
    pub(crate) fn finish(mut self, asked: &Asked) -> Result<Option<Rule>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let parents = self.changed.keys().filter_map(|path| path.parent());
        let parents = parents.filter(|dir| !self.made.contains(*dir)).map(Path::to_owned);
        self.dirs.extend(parents.collect::<Vec<_>>());
        self.changed.retain(|path, was| {
            let now = fs::symlink_metadata(path).ok().map(|now| stamp(&now));
            was.is_none() || *was != now
        });
        let outputs = self.outputs()?;
        if outputs.is_empty() {
            return Ok(None);
        }
        let root = self.library.root().to_owned();
        let place = |path: &Path| {
            let place = RulePath::of(path, &root);
            place.with_context(|| format!("{} is no plain path", path.display()))
        };
        let mut inputs = BTreeMap::new();
        let is_own =
            |path: &&PathBuf| self.changed.contains_key(*path) || self.made.contains(*path);
        for path in self.absent.iter().filter(|path| !is_own(path)) {
            inputs.insert(place(path)?, Input::Absent);
        }
        for dir in &self.dirs {
            inputs.insert(place(dir)?, Input::Dir);
        }
        let links = self.resolver.links();
        for (at, target) in links.filter(|(at, _)| of(at, &root) == Of::User) {
            if !self.changed.contains_key(at) {
                inputs.insert(place(at)?, Input::Link(target.clone()));
            }
        }
        let files = std::mem::take(&mut self.inputs);
        for (path, seen) in files {
            if let Some(input) = self.input(&path, &seen)? {
                inputs.insert(place(&path)?, input);
            }
        }
        let made = self.made.iter().filter(|dir| dir.is_dir()).map(|dir| place(dir));
        Ok(Some(Rule {
            inputs,
            programs: self.programs.clone(),
            made: made.collect::<Result<_>>()?,
            outputs,
            ..asked.rule(&root)?
        }))
    }

    /// The content of a file before the command, if that mattered.
    fn input(&self, path: &Path, seen: &Seen) -> Result<Option<Input>> {
        let is_changed = self.changed.contains_key(path);
        let hash = match seen.hash {
            Some(hash) => hash,
            None if is_changed => return Ok(None),
            None => {
                let hash = hash_and_keep(self.library, path, self.keeps_inputs)?;
                let now = fs::symlink_metadata(path);
                let is_same = now.is_ok_and(|now| stamp(&now) == seen.stamp);
                ensure!(is_same, "{} was changed by somebody else meanwhile", path.display());
                hash
            }
        };
        let Seen { bytes, mode, changed_ns, .. } = *seen;
        Ok(Some(Input::File { hash, bytes, mode, changed_ns }))
    }

    fn outputs(&self) -> Result<BTreeMap<RulePath, Output>> {
        let mut outputs = BTreeMap::new();
        for path in self.changed.keys() {
            let Ok(seen) = fs::symlink_metadata(path) else { continue };
            let place = RulePath::of(path, self.library.root());
            if let Some(place) = place.filter(|place| place.is_in_volume() && seen.is_file()) {
                outputs.insert(place, output_of(path)?);
            }
        }
        Ok(outputs)
    }
}

/// A file as a command has made it.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn output_of(path: &Path) -> Result<Output> {
    let seen = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    let mode = seen.permissions().mode() & 0o7777;
    Ok(Output { hash: open(path)?, bytes: seen.size(), mode })
}

/// A file that a command needs. If later runs are to have these bytes, a copy is kept.
///
/// # Errors
/// If it is not a file, or cannot be read or copied.
pub(crate) fn input_of(library: &Library, path: &Path, freshness: Freshness) -> Result<Input> {
    let seen = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    ensure!(seen.is_file(), "{} is no file", path.display());
    Ok(Input::File {
        hash: hash_and_keep(library, path, freshness == Freshness::Original)?,
        bytes: seen.size(),
        mode: seen.permissions().mode() & 0o7777,
        changed_ns: changed_ns(&seen),
    })
}

fn open(path: &Path) -> Result<Hash> {
    File::open(path).and_then(hash).with_context(|| path.display().to_string())
}

/// The hash of an input. If later runs are to have these bytes, a copy is kept.
fn hash_and_keep(library: &Library, path: &Path, keeps: bool) -> Result<Hash> {
    let hash = open(path)?;
    if keeps {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let bytes = file.metadata().with_context(|| path.display().to_string())?.size();
        library.keep_content(hash, bytes, file)?;
    }
    Ok(hash)
}
