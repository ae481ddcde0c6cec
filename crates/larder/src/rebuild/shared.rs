//! What commands made before, for all that run the same command with the same inputs: the build
//! cache of all clients of a volume.
//!
//! Rules with the same work (command, environment, directory, system) are listed together. If the
//! inputs of one are unchanged, it made what the command would make now; its outputs are kept by
//! their hashes, in class `volatile`: losing them costs a run. Bytes are checked when they are
//! used, so only the content of a rule has to be trusted.
//!
//! Results may differ between runs. So after a loss, rules with the same inputs can be listed of
//! which only some have all their copies: each is tried, and one that fails has changed nothing.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use larder_rebuild::{Hash, Input, Output, Program, Rule, RulePath};

use super::bytes;
use super::library::Library;
use super::staged::Staged;

/// Most rules of one work that are considered: the newest.
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
    for (id, keeper) in library.rules_of_work(work, is_believed).into_iter().take(RULES_MAX) {
        let rule = library.rule_of(id, keeper).ok().filter(|rule| now.is_as_it_was(rule));
        let Some(rule) = rule else { continue };
        let staged = match stage(library, &rule, &mut now) {
            Ok(staged) => staged,
            Err(error) => {
                tracing::debug!(%error, rule = %id, "outputs of an earlier run are not there");
                continue;
            }
        };
        // If this fails, inputs of other rules may be replaced by now: no other is tried.
        return match place(library, &rule, staged) {
            Ok(()) => Some(rule),
            Err(error) => {
                tracing::debug!(%error, rule = %id, "outputs of an earlier run cannot be placed");
                None
            }
        };
    }
    None
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

/// Copies the outputs of a rule that are not in place, each beside its place. If one is not there
/// or is other bytes, nothing has changed.
fn stage(library: &Library, rule: &Rule, now: &mut Now<'_>) -> Result<Staged> {
    let mut staged = Staged::default();
    for dir in &rule.made {
        staged.dir(&dir.at(library.root()))?;
    }
    for (place, output) in &rule.outputs {
        let path = place.at(library.root());
        if now.hash(&path) != Some(output.hash) {
            let copied = staged.file(&path, |new| copy_output(library, new, output));
            copied.with_context(|| path.display().to_string())?;
        }
    }
    Ok(staged)
}

fn copy_output(library: &Library, new: &Path, output: &Output) -> Result<()> {
    let from = File::open(library.output_path(output.hash))?;
    let mut file = File::create_new(new)?;
    ensure!(bytes::copy(from, &mut file)? == output.hash, "the kept bytes are others");
    file.set_permissions(Permissions::from_mode(output.mode & 0o777))?;
    Ok(())
}

fn place(library: &Library, rule: &Rule, staged: Staged) -> Result<()> {
    // Files that this user gets from it can be made again as this user.
    let id = library.keep_rule(rule)?;
    staged.place()?;
    for place in rule.outputs.keys() {
        library.set_made(&place.at(library.root()), id, place)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::ffi::OsStr;
    use std::time::Duration;

    use larder_rebuild::Freshness;

    use super::*;

    /// The first output is copied before the second one is found to be lost: it is not in place.
    #[test]
    fn a_rule_with_a_lost_copy_changes_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let (root, library) = (scratch.path(), Library::of(scratch.path()));
        let path = |written: &str| RulePath::parse(OsStr::new(written)).unwrap();
        let output = |bytes: &str| {
            let hash = Hash::of(bytes.as_bytes());
            Output { hash, bytes: bytes.len() as u64, mode: 0o640 }
        };
        let outputs = [(path("first"), output("one")), (path("made/second"), output("two"))];
        let rule = Rule {
            system: super::super::here(),
            freshness: Freshness::Version,
            timeout: Duration::ZERO,
            root: root.to_owned(),
            dir: path(""),
            command: Vec::new(),
            environment: BTreeMap::new(),
            inputs: BTreeMap::new(),
            programs: BTreeMap::new(),
            made: BTreeSet::from([path("made")]),
            outputs: BTreeMap::from(outputs),
        };
        let keep = |bytes: &str| fs::write(library.output_path(output(bytes).hash), bytes).unwrap();
        let stage =
            || stage(&library, &rule, &mut Now { library: &library, hashes: HashMap::new() });
        fs::create_dir_all(root.join(".larder/outputs")).unwrap();
        fs::write(root.join("first"), "as it was").unwrap();
        keep("one");
        assert!(stage().is_err());
        // The same if it is other bytes.
        fs::write(library.output_path(output("two").hash), "other").unwrap();
        assert!(stage().is_err());
        assert_eq!(fs::read_to_string(root.join("first")).unwrap(), "as it was");
        assert_eq!(fs::read_dir(root).unwrap().count(), 2, "no more than the file and .larder");

        keep("two");
        stage().unwrap().place().unwrap();
        for (name, bytes) in [("first", "one"), ("made/second", "two")] {
            assert_eq!(fs::read_to_string(root.join(name)).unwrap(), bytes);
            assert_eq!(fs::metadata(root.join(name)).unwrap().mode() & 0o7777, 0o640);
        }
    }
}
