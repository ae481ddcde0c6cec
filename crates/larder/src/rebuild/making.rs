//! Makes lost files again: plans which rules run, and runs them, each once on all machines.
//!
//! The process that runs a rule holds a lock on its file; others wait, and then find the files. A
//! file that is made replaces the lost one by a rename, with its group and permissions. Only lost
//! files of this user are replaced: root does this as the owner of each file, in a process of its
//! own, since users can put links into their directories.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result};
use larder_rebuild::{
    Attempt, Event, Found, Freshness, Hash, Input, Refusal, Rule, RulePath, Standing, Step, System,
    plan,
};
use rustix::fs::{FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::process::Gid;

use super::bytes::{self, hash, is_lost};
use super::confined::{Cell, confine};
use super::library::Library;
use super::paths::SYSTEM;
use super::scratch::Scratch;
use super::staged::beside;

/// The result for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was not lost, or another process has made it.
    There,
    /// It was made, and other lost files with it: where they are.
    Made(Vec<PathBuf>),
}

/// Makes files of a mounted volume.
pub(crate) struct Maker<'l> {
    library: &'l Library,
    here: System,
}

impl<'l> Maker<'l> {
    pub(crate) fn new(library: &'l Library) -> Maker<'l> {
        Maker { library, here: super::here() }
    }

    /// Makes a file again if its bytes are lost, and the lost files from which it is made. Blocks
    /// until the commands have ended.
    ///
    /// # Errors
    /// Why it stays lost.
    pub(crate) fn make(&self, file: &Path) -> Result<Outcome, Refusal> {
        let root = self.library.root();
        let target = RulePath::of(file, root).filter(RulePath::is_in_volume);
        let target = target.ok_or_else(|| Refusal::NotTried("it is in no volume".into()))?;
        let rules = plan(&target, |place| self.standing(place))?;
        let mut made = Vec::new();
        for rule in &rules {
            made.extend(self.run(rule, file)?);
        }
        Ok(if made.is_empty() { Outcome::There } else { Outcome::Made(made) })
    }

    /// What is known of a file.
    fn standing(&self, place: &RulePath) -> Result<Standing, Refusal> {
        let path = place.at(self.library.root());
        let seen = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Standing::Missing),
            seen => seen.map_err(|error| not_tried(place, &error))?,
        };
        if !seen.is_file() || !is_lost(&path).map_err(|error| not_tried(place, &error))? {
            return Ok(Standing::Held);
        }
        if seen.uid() != rustix::process::geteuid().as_raw() {
            let why =
                format!("{place} belongs to user {}, and only that user makes it", seen.uid());
            return Ok(Standing::Lost(Err(Refusal::NotTried(why))));
        }
        let made = self.library.made(&path).map_err(|error| not_tried(place, &error))?;
        let rule = match made {
            None => Err(Refusal::NoRule),
            Some(made) if made.changed_ns != bytes::changed_ns(&seen) => Err(Refusal::Overwritten),
            Some(made) => self.library.rule(made.rule, seen.uid()).and_then(|rule| {
                if !rule.outputs.contains_key(&made.at) {
                    return Err(Refusal::NotMade(made.at));
                }
                Ok(Box::new(rule))
            }),
        };
        Ok(Standing::Lost(rule))
    }

    /// Runs a rule; returns which files it made. `asked` may have another name by now.
    fn run(&self, rule: &Rule, asked: &Path) -> Result<Vec<PathBuf>, Refusal> {
        let mut run = Run {
            maker: self,
            rule,
            asked,
            turn: None,
            lost: BTreeMap::new(),
            scratch: None,
            made: Vec::new(),
        };
        let mut attempt = Attempt::new(rule, &self.here);
        loop {
            let event = match attempt.step() {
                Step::Done(_) => return Ok(run.made),
                Step::Refused(refusal) => return Err(refusal),
                Step::AwaitTurn => run.await_turn(),
                Step::Look(place) => run.look(place),
                Step::Run => run.command(),
                Step::Compare(place) => run.compare(place),
                Step::Place => run.place(),
            };
            attempt.apply(event.unwrap_or_else(|error| Event::Failed(format!("{error:#}"))));
        }
    }
}

fn not_tried(place: &RulePath, error: &(impl std::fmt::Display + ?Sized)) -> Refusal {
    Refusal::NotTried(format!("{place}: {error:#}"))
}

/// One run of one rule.
struct Run<'r> {
    maker: &'r Maker<'r>,
    rule: &'r Rule,
    asked: &'r Path,
    /// The locked file of the rule.
    turn: Option<File>,
    /// Outputs that are lost: where the rule makes them, their paths, and their attributes.
    lost: BTreeMap<RulePath, (PathBuf, Metadata)>,
    scratch: Option<Scratch>,
    made: Vec<PathBuf>,
}

impl Run<'_> {
    fn root(&self) -> &Path {
        self.maker.library.root()
    }

    fn await_turn(&mut self) -> Result<Event> {
        let id = self.rule.id();
        let user = rustix::process::geteuid().as_raw();
        let file = self.maker.library.open_rule(id, user)?;
        let Some(locked) = lock_within(file, self.rule.timeout)? else { return Ok(Event::NoTurn) };
        self.turn = Some(locked);
        let recorded = self.rule.outputs.keys().map(|place| place.at(self.maker.library.root()));
        let candidates = recorded.chain([self.asked.to_owned()]);
        for path in candidates.collect::<Vec<_>>() {
            let Ok(seen) = fs::symlink_metadata(&path) else { continue };
            let made = self.maker.library.made(&path)?.filter(|made| made.rule == id);
            if let Some(made) = made
                && seen.is_file()
                && seen.uid() == user
                && is_lost(&path)?
            {
                self.lost.insert(made.at, (path, seen));
            }
        }
        Ok(Event::Turn(!self.lost.is_empty()))
    }

    /// Where the bytes of an input are.
    fn source(&self, place: &RulePath) -> PathBuf {
        match (self.rule.freshness, self.rule.inputs.get(place)) {
            (Freshness::Original, Some(Input::File { hash, .. })) => {
                let user = rustix::process::geteuid().as_raw();
                self.maker.library.content_path(*hash, user)
            }
            _ => place.at(self.root()),
        }
    }

    fn look(&self, place: &RulePath) -> Result<Event> {
        let found = found(File::open(self.source(place)));
        Ok(Event::Input(found.with_context(|| format!("its input {place}"))?))
    }

    fn command(&mut self) -> Result<Event> {
        let scratch = Scratch::new().context("no room to work in")?;
        let cell = self.cell(scratch.root());
        self.scratch = Some(scratch);
        Ok(Event::Ended(confine(&cell, self.rule.timeout)?))
    }

    /// What the command sees.
    fn cell(&self, root: &Path) -> Cell {
        let rule = self.rule;
        // The volume is where it was when the rule was recorded.
        let inside = |place: &RulePath| place.at(&rule.root).into_os_string();
        let mut cell = Cell {
            root: root.as_os_str().to_owned(),
            dir: inside(&rule.dir),
            command: rule.command.clone(),
            environment: rule.environment.clone().into_iter().collect(),
            ..Cell::default()
        };
        let system = SYSTEM.into_iter().filter(|dir| Path::new(dir).exists());
        cell.shown = system.map(|dir| (dir.into(), dir.into())).collect();
        let is_made =
            |dir: &Path| rule.made.iter().any(|made| dir.starts_with(made.at(&rule.root)));
        let parents =
            rule.outputs.keys().filter_map(|place| Some(place.at(&rule.root).parent()?.to_owned()));
        cell.dirs = parents
            .chain([rule.dir.at(&rule.root)])
            .filter(|dir| !is_made(dir))
            .map(PathBuf::into_os_string)
            .collect();
        for (place, input) in &rule.inputs {
            match input {
                Input::File { mode, changed_ns, .. } if rule.freshness == Freshness::Original => {
                    cell.copied.push((
                        self.source(place).into(),
                        inside(place),
                        *mode,
                        *changed_ns,
                    ));
                }
                Input::File { .. } => cell.shown.push((self.source(place).into(), inside(place))),
                Input::Link(target) => cell.links.push((inside(place), target.clone())),
                Input::Dir => cell.dirs.push(inside(place)),
                Input::Absent => (),
            }
        }
        cell
    }

    fn compare(&self, place: &RulePath) -> Result<Event> {
        Ok(Event::Output(found(self.output(place))?))
    }

    /// A file that the command made. Links in its path are not followed: the command may have made
    /// them to any place.
    fn output(&self, place: &RulePath) -> io::Result<File> {
        let scratch = self.scratch.as_ref().expect("the command has run");
        let inside = place.at(&self.rule.root);
        let inside = inside.strip_prefix("/").unwrap_or(&inside);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let file =
            File::from(rustix::fs::openat2(scratch.dir(), inside, flags, Mode::empty(), resolve)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn place(&mut self) -> Result<Event> {
        for (place, (path, was)) in &self.lost {
            let Some(output) = self.rule.outputs.get(place) else { continue };
            let named = |file: &Path| self.maker.library.set_made(file, self.rule.id(), place);
            let placed = replace(path, was, self.output(place)?, output.hash, named);
            placed.with_context(|| format!("cannot replace {}", path.display()))?;
            self.made.push(path.clone());
        }
        Ok(Event::Placed)
    }
}

/// Replaces a lost file by these bytes.
fn replace(
    path: &Path,
    was: &Metadata,
    from: File,
    expected: Hash,
    named: impl Fn(&Path) -> Result<()>,
) -> Result<()> {
    beside(path, |new| {
        let mut file = File::create_new(new)?;
        let same = bytes::copy(from, &mut file)? == expected;
        // Before the permissions, which apply to this group.
        rustix::fs::fchown(&file, None, Some(Gid::from_raw(was.gid())))?;
        file.set_permissions(Permissions::from_mode(was.mode() & 0o7777))?;
        file.sync_all()?;
        if same {
            // make(1) compares times: the same bytes are as old as they were.
            file.set_times(FileTimes::new().set_modified(was.modified()?))?;
        }
        drop(file);
        named(new)
    })
}

/// The object found: a file with a hash, or nothing usable.
fn found(file: io::Result<File>) -> Result<Found> {
    match file.and_then(hash) {
        Ok(hash) => Ok(Found::File(hash)),
        Err(error) if bytes::says_lost(&error) => Ok(Found::Other),
        Err(error) => match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(
                rustix::io::Errno::NOENT
                | rustix::io::Errno::NOTDIR
                | rustix::io::Errno::LOOP
                | rustix::io::Errno::ISDIR,
            ) => Ok(Found::Other),
            None if error.kind() == io::ErrorKind::NotFound => Ok(Found::Other),
            _ => Err(error.into()),
        },
    }
}

/// Locks a file as soon as no other process has it locked; `None` if that takes longer.
fn lock_within(file: File, timeout: Duration) -> Result<Option<File>> {
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => (),
        done => return Ok(done.map(|()| Some(file))?),
    }
    let (tells, told) = channel();
    std::thread::spawn(move || {
        let locked = rustix::fs::flock(&file, FlockOperation::LockExclusive).map(|()| file);
        // A lock that comes too late is released with the file.
        let _ = tells.send(locked);
    });
    match told.recv_timeout(timeout) {
        Ok(locked) => Ok(Some(locked?)),
        Err(_) => Ok(None),
    }
}
