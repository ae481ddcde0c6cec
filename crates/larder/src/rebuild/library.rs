//! Rules of a volume, and what they need: files below `.larder` in its root
//! (`docs/formats/rule.md`).
//!
//! A rule is named by the hash of its bytes, so no user can replace one by another. Each user keeps
//! rules of their own: larder runs a rule as the owner of the file, so it does so only if that user
//! or root keeps the rule. Rules are written in class `edited`, whatever class the mount has: they
//! must survive the files that they describe.
//!
//! Copies of inputs are each user's own, too: other users may not be allowed to read these bytes,
//! and must not be able to put others in their place.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use larder_rebuild::{Hash, RULE_BYTES_MAX, Refusal, Rule, RulePath, WrongRule};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode, percent_encode};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::bytes;

/// The directory in the root of a volume.
const NAME: &str = ".larder";

/// The extended attribute of a file that a rule makes.
const ATTRIBUTE: &str = "user.larder.rule";

/// The class of records that must survive the files that they describe.
const RECORD: &str = "edited";

/// Every user of the volume may add entries, and remove only their own.
const OPEN_TO_ALL: u32 = 0o1777;

/// How a file was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    /// The rule that made it.
    pub(crate) rule: Hash,
    /// Where the rule makes it. The file may have another name now.
    pub(crate) at: RulePath,
    /// When it was last changed, by the rule.
    pub(crate) changed_ns: i64,
}

/// What is kept below `.larder`.
struct Kept {
    /// The directory.
    kind: &'static str,
    name: String,
    class: &'static str,
    mode: u32,
}

/// The rules of a mounted volume.
pub(crate) struct Library {
    root: PathBuf,
}

impl Library {
    /// Of the volume that is mounted there.
    pub(crate) fn of(root: &Path) -> Library {
        Library { root: root.to_owned() }
    }

    /// Where the volume is mounted.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, kind: &str, hash: Hash) -> PathBuf {
        self.root.join(NAME).join(kind).join(hash.to_string())
    }

    /// The file of a rule that a user keeps.
    fn rule_path(&self, rule: Hash, user: u32) -> PathBuf {
        self.root.join(NAME).join("rules").join(name(rule, user))
    }

    /// Opens the file of a rule that a user may run: of that user, or root's.
    pub(super) fn open_rule(&self, rule: Hash, user: u32) -> Result<File, Refusal> {
        self.open_rule_of(rule, user).or_else(|refusal| match refusal {
            Refusal::NoRule if user != 0 => self.open_rule_of(rule, 0),
            refusal => Err(refusal),
        })
    }

    fn open_rule_of(&self, rule: Hash, user: u32) -> Result<File, Refusal> {
        let not_tried = |error: io::Error| Refusal::NotTried(format!("its rule {rule}: {error}"));
        let file = match File::open(self.rule_path(rule, user)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Refusal::NoRule),
            file => file.map_err(not_tried)?,
        };
        // Any user can choose the name, but not the owner.
        if file.metadata().map_err(not_tried)?.uid() != user {
            return Err(Refusal::NotTried(
                "somebody else's file is in the place of its rule".into(),
            ));
        }
        Ok(file)
    }

    /// The path of the copy of an input that a user has, or root, if there is one.
    pub(super) fn content_path(&self, hash: Hash, user: u32) -> PathBuf {
        let own = self.own_content(hash, user);
        if user != 0 && !own.exists() { self.own_content(hash, 0) } else { own }
    }

    fn own_content(&self, hash: Hash, user: u32) -> PathBuf {
        self.root.join(NAME).join("contents").join(name(hash, user))
    }

    /// The path of the outputs with a hash that are kept for others, if there are any.
    pub(super) fn output_path(&self, hash: Hash) -> PathBuf {
        self.path("outputs", hash)
    }

    /// A directory below `.larder`, made where it is not.
    fn dir(&self, kind: &str) -> Result<PathBuf> {
        let dir = self.root.join(NAME).join(kind);
        let above: Vec<&Path> = dir.ancestors().take_while(|dir| *dir != self.root).collect();
        for dir in above.into_iter().rev() {
            match fs::create_dir(dir) {
                Ok(()) => fs::set_permissions(dir, Permissions::from_mode(OPEN_TO_ALL))?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (),
                Err(error) => {
                    let next =
                        format!("let the volume's owner do: mkdir -m 1777 {}", dir.display());
                    return Err(error).context(format!("cannot make {}; {next}", dir.display()));
                }
            }
        }
        Ok(dir)
    }

    /// Keeps a rule.
    ///
    /// # Errors
    /// If it cannot be written, or is too long to be read again.
    pub(crate) fn keep_rule(&self, rule: &Rule) -> Result<Hash> {
        let (text, id) = (rule.to_text(), rule.id());
        if text.len() > RULE_BYTES_MAX {
            bail!("the command used too many files for a rule ({})", rule.inputs.len());
        }
        let user = rustix::process::geteuid().as_raw();
        let kept = Kept { kind: "rules", name: name(id, user), class: RECORD, mode: 0o444 };
        self.keep(&kept, id, text.as_bytes())?;
        // It may have been there before.
        self.rule_of(id, user)?;
        Ok(id)
    }

    /// Keeps a copy of a file's bytes, which are so many and have this hash. It is durable when
    /// this returns, and only this user can read it.
    ///
    /// # Errors
    /// If they cannot be copied, or have another hash by now; or if another user's file is in its
    /// place.
    pub(crate) fn keep_content(&self, hash: Hash, bytes: u64, from: impl Read) -> Result<()> {
        let user = rustix::process::geteuid().as_raw();
        let kept = Kept { kind: "contents", name: name(hash, user), class: RECORD, mode: 0o400 };
        let path = self.own_content(hash, user);
        let is_ours = |seen: &fs::Metadata| seen.is_file() && seen.uid() == user;
        match fs::symlink_metadata(&path) {
            Ok(seen) if !is_ours(&seen) => {
                bail!("somebody else's file is in the place of {}", path.display())
            }
            // What was broken off, or changed by hand.
            Ok(seen) if seen.size() != bytes => fs::remove_file(&path)?,
            _ => (),
        }
        self.keep(&kept, hash, from)
    }

    /// The same for an output, for others: it may be lost.
    ///
    /// # Errors
    /// As [`Library::keep_content`].
    pub(super) fn keep_output(&self, hash: Hash, from: impl Read) -> Result<()> {
        let name = hash.to_string();
        self.keep(&Kept { kind: "outputs", name, class: "volatile", mode: 0o444 }, hash, from)
    }

    /// Lists a rule with those for the same work.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub(super) fn list(&self, rule: &Rule) -> Result<()> {
        let work = self.dir(&format!("works/{}", rule.work()))?;
        let name = work.join(name(rule.id(), rustix::process::geteuid().as_raw()));
        match File::create_new(&name) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(error).with_context(|| name.display().to_string())
            }
            _ => Ok(()),
        }
    }

    /// The rules that believed users have listed for a work, with these users; newest first.
    pub(super) fn rules_of_work(
        &self,
        work: Hash,
        is_believed: impl Fn(u32) -> bool,
    ) -> Vec<(Hash, u32)> {
        let Ok(names) = fs::read_dir(self.path("works", work)) else { return Vec::new() };
        let listed = names.filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name();
            let (id, user) = name.to_str()?.split_once('-')?;
            let (id, user) = (id.parse().ok()?, user.parse().ok()?);
            // Other users may have listed many rules, and each asked for costs a call.
            let seen = is_believed(user).then(|| entry.metadata())?.ok()?;
            Some((bytes::changed_ns(&seen), id, user))
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_unstable_by_key(|listed| std::cmp::Reverse(*listed));
        listed.into_iter().map(|(_, id, user)| (id, user)).collect()
    }

    fn keep(&self, kept: &Kept, hash: Hash, from: impl Read) -> Result<()> {
        let dir = self.dir(kept.kind)?;
        let path = dir.join(&kept.name);
        if path.exists() && !bytes::is_lost(&path)? {
            return Ok(());
        }
        let new = dir.join(format!(".new-{}-{hash}", std::process::id()));
        let written =
            self.write(&new, kept, hash, from).and_then(|()| Ok(fs::rename(&new, &path)?));
        if written.is_err() {
            // A file that is left does no harm.
            let _ = fs::remove_file(&new);
        }
        written.with_context(|| format!("cannot keep {}", path.display()))
    }

    fn write(&self, path: &Path, kept: &Kept, hash: Hash, from: impl Read) -> Result<()> {
        // Not readable by others before it is known who may.
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let asked = larder_io::class_hint::ask(&file, kept.class);
        asked.with_context(|| format!("it cannot be of class {}", kept.class))?;
        let copied = bytes::copy(from, &mut file)?;
        anyhow::ensure!(copied == hash, "the bytes changed meanwhile");
        file.set_permissions(Permissions::from_mode(kept.mode))?;
        Ok(file.sync_all()?)
    }

    /// Reads a rule that a user may run.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn rule(&self, id: Hash, user: u32) -> Result<Rule, Refusal> {
        read_rule(self.open_rule(id, user)?, id)
    }

    /// Reads the rule that a user keeps.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn rule_of(&self, id: Hash, user: u32) -> Result<Rule, Refusal> {
        read_rule(self.open_rule_of(id, user)?, id)
    }

    /// Records how a file was made, from now on.
    ///
    /// # Errors
    /// If the mount has no extended attributes of users, or the file may not be changed.
    pub(crate) fn set_made(&self, file: &Path, rule: Hash, at: &RulePath) -> Result<()> {
        let seen = fs::symlink_metadata(file).with_context(|| file.display().to_string())?;
        let at = percent_encode(at.written().as_bytes(), NON_ALPHANUMERIC);
        let value = format!("{rule} {} {at}", bytes::changed_ns(&seen));
        let set = rustix::fs::setxattr(file, ATTRIBUTE, value.as_bytes(), XattrFlags::empty());
        self.attribute(file, set)
    }

    /// Removes the record of how a file was made.
    ///
    /// # Errors
    /// As [`Library::set_made`].
    pub(crate) fn forget_made(&self, file: &Path) -> Result<()> {
        match rustix::fs::removexattr(file, ATTRIBUTE) {
            Err(Errno::NODATA) => Ok(()),
            done => self.attribute(file, done),
        }
    }

    /// How a file was made, if that is known.
    ///
    /// # Errors
    /// If the mount has no extended attributes of users, or the file may not be read.
    pub(crate) fn made(&self, file: &Path) -> Result<Option<Made>> {
        let mut value = vec![0; 16 << 10];
        match rustix::fs::getxattr(file, ATTRIBUTE, &mut value[..]) {
            Ok(len) => Ok(read_made(&value[..len])),
            Err(Errno::NODATA) => Ok(None),
            Err(error) => self.attribute(file, Err(error)).map(|()| None),
        }
    }

    fn attribute(&self, file: &Path, done: rustix::io::Result<()>) -> Result<()> {
        match done {
            Err(Errno::OPNOTSUPP) => bail!(
                "{} has no extended attributes; mount it with -o user_xattr",
                self.root.display()
            ),
            done => done.with_context(|| file.display().to_string()),
        }
    }
}

/// The name of a file with this hash that a user keeps.
fn name(hash: Hash, user: u32) -> String {
    format!("{hash}-{user}")
}

fn read_rule(file: File, id: Hash) -> Result<Rule, Refusal> {
    let mut text = Vec::new();
    let read = file.take(RULE_BYTES_MAX as u64 + 1).read_to_end(&mut text);
    read.map_err(|error| Refusal::NotTried(format!("its rule {id}: {error}")))?;
    match Hash::of(&text) == id {
        true => Ok(Rule::from_text(&text)?),
        false => Err(WrongRule::Other.into()),
    }
}

fn read_made(value: &[u8]) -> Option<Made> {
    let mut fields = value.split(|byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let (rule, changed_ns) = (text()?.parse().ok()?, text()?.parse().ok()?);
    let at = OsString::from_vec(percent_decode(fields.next()?).collect());
    let at = RulePath::parse(&at).filter(RulePath::is_in_volume)?;
    fields.next().is_none().then_some(Made { rule, at, changed_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn hostile_attributes_say_nothing() {
        let rule = Hash::of(b"");
        let of = |rest: &str| read_made(format!("{rule} {rest}").as_bytes());
        let at = RulePath::parse(OsStr::new("a b/c")).unwrap();
        assert_eq!(of("-3 a%20b%2Fc"), Some(Made { rule, at, changed_ns: -3 }));
        for wrong in ["0 %2Fetc%2Fpasswd", "0 ..%2Fx", "0 a%2F%2Fb", "a", "0", "x a", "0 a b", ""] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        for wrong in [&b""[..], b"x", b"x 0 a", &[0xff; 70], &[b'a'; 65], "é".repeat(40).as_bytes()]
        {
            assert_eq!(read_made(wrong), None);
        }
    }

    /// The newest rule is the one whose copies are most likely there. The users' numbers are part
    /// of the names, so this needs no other users.
    #[test]
    fn rules_of_a_work_are_those_of_believed_users_newest_first() {
        let scratch = tempfile::tempdir().unwrap();
        let (library, work) = (Library::of(scratch.path()), Hash::of(b"work"));
        let dir = library.path("works", work);
        fs::create_dir_all(&dir).unwrap();
        let rules = [b"a", b"b", b"c", b"d"].map(|bytes| Hash::of(bytes));
        for (rule, user, changed_s) in
            [(rules[0], 7, 20), (rules[1], 0, 30), (rules[2], 7, 10), (rules[3], 8, 40)]
        {
            let listed = File::create_new(dir.join(name(rule, user))).unwrap();
            listed.set_modified(UNIX_EPOCH + Duration::from_secs(changed_s)).unwrap();
        }
        fs::write(dir.join("other"), "").unwrap();
        let listed = library.rules_of_work(work, |user| user != 8);
        assert_eq!(listed, [(rules[1], 0), (rules[0], 7), (rules[2], 7)]);
        assert_eq!(library.rules_of_work(work, |user| user == 8), [(rules[3], 8)]);
        assert_eq!(library.rules_of_work(Hash::of(b"other"), |_| true), []);
    }
}
