//! Which files of the volume have lost bytes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use larder_vfs::{Cred, Result};
use larder_wire::meta::calls::{Lost, LostTold};
use larder_wire::meta::words::FileId;

use super::Native;

/// The files that have lost bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFiles {
    /// The number of the last loss of the volume; 0 if there was none.
    pub number: u64,
    /// Those with a path.
    pub files: Vec<LostFile>,
}

/// A file that has lost bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// One of its paths, from the root of the volume on.
    pub path: PathBuf,
    /// Its owner.
    pub uid: u32,
}

impl Native {
    /// Asks the metadata server which files have lost bytes. If there was no loss after that with
    /// number `since`, it names none. With `look` it asks its memory disks first whether they were
    /// started again: otherwise it knows that a second or two later.
    ///
    /// # Errors
    /// As a call.
    pub async fn lost_files(&self, look: bool, since: u64) -> Result<LostFiles> {
        let root = Cred::root();
        let (mut files, mut after, mut look, mut first) = (Vec::new(), FileId(0), look, None);
        loop {
            let told = self.session.ask(&root, |session| Lost { session, look, since, after });
            let LostTold { number, files: some, end } = told.await?;
            let last = some.0.last().map(|file| file.file);
            let some = some.0.into_iter().filter(|file| !file.path.is_empty());
            files.extend(some.map(|file| LostFile {
                path: PathBuf::from(OsString::from_vec(file.path.to_vec())),
                uid: file.uid,
            }));
            // A server that names no file and says that there are more talks nonsense.
            let more = last.filter(|last| !end && *last > after);
            // What is lost meanwhile may be missing from the first part.
            let number = *first.get_or_insert(number);
            let Some(last) = more else {
                if self.loss_known.fetch_max(number, Ordering::Relaxed) < number {
                    // Layouts that are known under leases say where bytes were.
                    self.session.leases().changed_somehow();
                }
                return Ok(LostFiles { number, files });
            };
            (after, look) = (last, false);
        }
    }
}
