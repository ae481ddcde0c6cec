//! Edits of texts, pages and a mailbox, in which everything must be durable: a file system that
//! keeps its promises cannot gain anything here.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::data::Pattern;
use crate::suite::{Outcome, WorkDir};

const DIR: &str = "edit";
const MAILBOX: &str = "mailbox";

const TEXT_BYTES: usize = 8000;
const PAGE_BYTES: usize = 4000;
const MESSAGE_BYTES: usize = 2000;

/// What an edit adds to a text, and to a page.
const LINE: &str = "a line that was added\n";

/// How a message says whether it was read.
const UNREAD: u8 = b'U';
const READ: u8 = b'R';
/// Where: the status follows these bytes.
const STATUS: &str = "Status: ";

/// How many texts, pages and messages a client edits each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edits {
    pub(super) each: u32,
}

impl Edits {
    /// The texts, the pages, and a mailbox of messages that were read.
    pub(super) fn furnish(self, place: &WorkDir) -> Result<()> {
        let dir = place.at(DIR);
        fs::create_dir(&dir)?;
        for i in 0..self.each {
            fs::write(dir.join(format!("text-{i}")), text(place.copy, i))?;
            fs::write(dir.join(format!("page-{i}")), page(place.copy, i))?;
        }
        Ok(fs::write(dir.join(MAILBOX), messages(place.copy, 0..self.each, READ))?)
    }

    /// Edits all of them.
    pub(super) fn edit(self, place: &WorkDir) -> Result<Outcome> {
        let dir = place.at(DIR);
        for i in 0..self.each {
            let name = format!("text-{i}");
            let mut text = fs::read(dir.join(&name))?;
            text.extend(LINE.as_bytes());
            replace(&dir, &name, &text)?;
        }
        for i in 0..self.each {
            rewrite(&dir.join(format!("page-{i}")))?;
        }
        self.mail(&dir, place.copy)?;
        let copy = place.copy;
        Outcome::checked_at_end(move || self.check(&dir, copy))
    }

    /// Delivers messages, marks them as read, and removes the old ones.
    fn mail(self, dir: &Path, copy: u32) -> Result<()> {
        let path = dir.join(MAILBOX);
        let mut mailbox = OpenOptions::new().append(true).open(&path)?;
        for i in self.each..2 * self.each {
            mailbox.write_all(&message(copy, i, UNREAD))?;
            mailbox.sync_all()?;
        }
        drop(mailbox);
        let mailbox = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut all = Vec::new();
        (&mailbox).read_to_end(&mut all)?;
        for at in unread(&all) {
            all[at] = READ;
            mailbox.write_all_at(&[READ], at as u64)?;
            mailbox.sync_all()?;
        }
        let old = messages(copy, 0..self.each, READ).len();
        ensure!(all.len() > old, "the mailbox is too short");
        replace(dir, MAILBOX, &all[old..])
    }

    fn check(self, dir: &Path, copy: u32) -> Result<()> {
        let same = |name: &str, expected: &[u8]| {
            let wrong = || format!("wrong bytes in {name}");
            ensure!(fs::read(dir.join(name)).with_context(wrong)? == expected, wrong());
            Ok(())
        };
        for i in 0..self.each {
            same(&format!("text-{i}"), &[&text(copy, i), LINE.as_bytes()].concat())?;
            same(&format!("page-{i}"), &[LINE.as_bytes(), &page(copy, i)].concat())?;
        }
        same(MAILBOX, &messages(copy, self.each..2 * self.each, READ))?;
        let names = fs::read_dir(dir)?.count();
        ensure!(names == 2 * self.each as usize + 1, "{names} names after the edits");
        Ok(())
    }
}

/// As an editor saves: the old file exists until the new one is durable.
fn replace(dir: &Path, name: &str, content: &[u8]) -> Result<()> {
    let new = dir.join(format!("{name}.new"));
    let mut file = File::create_new(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&new, dir.join(name))?;
    Ok(File::open(dir)?.sync_all()?)
}

/// As a page generator does: the same file is truncated and rewritten, with an additional line at
/// its beginning.
fn rewrite(path: &Path) -> Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut content = LINE.as_bytes().to_vec();
    file.read_to_end(&mut content)?;
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(&content)?;
    Ok(file.sync_all()?)
}

fn text(copy: u32, i: u32) -> Vec<u8> {
    Pattern((u64::from(copy) << 32) + u64::from(i)).text(TEXT_BYTES)
}

fn page(copy: u32, i: u32) -> Vec<u8> {
    Pattern((u64::from(copy) << 32) + (1 << 16) + u64::from(i)).text(PAGE_BYTES)
}

fn message(copy: u32, i: u32, status: u8) -> Vec<u8> {
    let mut message = format!("From: client {copy}\nSubject: message {i}\n{STATUS}").into_bytes();
    message.extend([status, b'\n', b'\n']);
    message.extend(Pattern((u64::from(copy) << 32) + (2 << 16) + u64::from(i)).text(MESSAGE_BYTES));
    message.push(b'\n');
    message
}

fn messages(copy: u32, which: std::ops::Range<u32>, status: u8) -> Vec<u8> {
    which.flat_map(|i| message(copy, i, status)).collect()
}

/// Where the statuses of unread messages are.
fn unread(mailbox: &[u8]) -> Vec<usize> {
    let parts = mailbox.windows(STATUS.len() + 1).enumerate();
    let found =
        parts.filter(|(_, part)| part.starts_with(STATUS.as_bytes()) && part.ends_with(&[UNREAD]));
    found.map(|(at, _)| at + STATUS.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_checked_to_the_byte() {
        let top = tempfile::tempdir().unwrap();
        let place = WorkDir::local(top.path(), 3);
        let edits = Edits { each: 2 };
        edits.furnish(&place).unwrap();
        let dir = place.at(DIR);
        assert!(edits.check(&dir, 3).is_err());
        let outcome = edits.edit(&place).unwrap();
        edits.check(&dir, 3).unwrap();
        assert!(edits.check(&dir, 2).is_err());
        fs::write(dir.join("text-0.new"), "").unwrap();
        assert!((outcome.check_at_end.unwrap())().is_err());
    }

    #[test]
    fn statuses_of_unread_messages_are_found() {
        let mut mailbox = messages(1, 0..2, READ);
        mailbox.extend(messages(1, 2..4, UNREAD));
        let found = unread(&mailbox);
        assert_eq!(found.len(), 2);
        for at in found {
            mailbox[at] = READ;
        }
        assert_eq!(mailbox, messages(1, 0..4, READ));
    }
}
