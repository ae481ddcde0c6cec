//! What commands made before, for all that run the same command with the same inputs: the build
//! cache of all clients of a volume.
//!
//! Rules with the same work (command, environment, directory, system) are listed together. If the
//! inputs of one are unchanged, it made what the command would make now; its outputs are kept by
//! their hashes, in class `volatile`: losing them costs a run. Bytes are checked when they are
//! used, so only the content of a rule has to be trusted.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use larder_rebuild::{Hash, Input, Output, Program, Rule, RulePath};

use super::bytes;
use super::library::{Library, beside};

/// Most rules of one work that are considered.
const RULES_MAX: usize = 1000;

/// Of which users `larder run --shared` trusts the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Trust {
    /// Those of this user, and of root.
    Own,
    /// Those of all users who can write to the volume.
    All,
}

/// Puts outputs of an earlier run in place; returns the rule that made them, if there is one.
pub(crate) fn put(library: &Library, work: Hash, trust: Trust) -> Option<Rule> {
    let mut now = Now { library, hashes: HashMap::new() };
    let user = rustix::process::geteuid().as_raw();
    let is_believed = |keeper: u32| trust == Trust::All || [0, user].contains(&keeper);
    let listed = library.rules_of_work(work).into_iter().take(RULES_MAX);
    let believed = listed.filter(|(_, keeper)| is_believed(*keeper));
    let mut rules = believed.filter_map(|(id, keeper)| library.rule_of(id, keeper).ok());
    let rule = rules.find(|rule| now.is_as_it_was(rule))?;
    match put_all(library, &rule, &mut now) {
        Ok(()) => Some(rule),
        Err(error) => {
            tracing::debug!(%error, "outputs of an earlier run are not there");
            None
        }
    }
}

/// Keeps the outputs of a run for others.
///
/// # Errors
/// If one cannot be copied.
pub(crate) fn keep(library: &Library, rule: &Rule) -> Result<()> {
    for (place, output) in &rule.outputs {
        let path = place.at(library.root());
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        library.keep_output(output.hash, file)?;
    }
    library.list(rule)
}

/// The present state of files.
struct Now<'l> {
    library: &'l Library,
    hashes: HashMap<PathBuf, Option<Hash>>,
}

impl Now<'_> {
    fn hash(&mut self, path: &Path) -> Option<Hash> {
        if let Some(known) = self.hashes.get(path) {
            return *known;
        }
        let is_file = fs::symlink_metadata(path).is_ok_and(|seen| seen.is_file());
        let file = is_file.then(|| File::open(path).and_then(bytes::hash).ok()).flatten();
        self.hashes.insert(path.to_owned(), file);
        file
    }

    /// Whether the command of a rule would find the same inputs, as far as the rule records them.
    fn is_as_it_was(&mut self, rule: &Rule) -> bool {
        let is_same = |(path, then): (&PathBuf, &Program)| {
            let seen = fs::metadata(path);
            seen.is_ok_and(|seen| seen.size() == then.bytes && seen.mtime() == then.changed_s)
        };
        rule.programs.iter().all(is_same)
            && rule.inputs.iter().all(|(place, input)| self.is_input(place, input))
    }

    fn is_input(&mut self, place: &RulePath, then: &Input) -> bool {
        let path = place.at(self.library.root());
        let seen = fs::symlink_metadata(&path);
        match then {
            Input::File { hash, .. } => self.hash(&path) == Some(*hash),
            Input::Link(target) => fs::read_link(&path).is_ok_and(|now| now.as_os_str() == target),
            Input::Dir => seen.is_ok_and(|seen| seen.is_dir()),
            Input::Absent => seen.is_err_and(|error| error.kind() == io::ErrorKind::NotFound),
        }
    }
}

fn put_all(library: &Library, rule: &Rule, now: &mut Now<'_>) -> Result<()> {
    for dir in &rule.made {
        fs::create_dir_all(dir.at(library.root()))?;
    }
    // Files that this user gets from it can be made again as this user.
    let id = library.keep_rule(rule)?;
    for (place, output) in &rule.outputs {
        let path = place.at(library.root());
        if now.hash(&path) != Some(output.hash) {
            put_one(library, &path, output).with_context(|| path.display().to_string())?;
        }
        library.set_made(&path, id, place)?;
    }
    Ok(())
}

fn put_one(library: &Library, path: &Path, output: &Output) -> Result<()> {
    let from = File::open(library.output_path(output.hash))?;
    beside(path, |new| {
        let mut file = File::create_new(new)?;
        ensure!(bytes::copy(from, &mut file)? == output.hash, "the kept bytes are others");
        file.set_permissions(Permissions::from_mode(output.mode & 0o777))?;
        Ok(())
    })
}
