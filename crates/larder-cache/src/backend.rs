//! The disk as redb, the index's database, sees it.

use std::io;
use std::sync::{Arc, Mutex};

use larder_io::DiskFile;
use redb::StorageBackend;

use crate::lock;

/// redb's view of a file of the disk.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) file: Arc<dyn DiskFile>,
    /// The first error of the disk, as opposed to damage that redb finds.
    pub(crate) disk_error: Arc<Mutex<Option<io::Error>>>,
}

impl Backend {
    /// Remembers the first error. An end of file is damage: redb asked for what once existed.
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::UnexpectedEof
        {
            let copy =
                error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error);
            lock(&self.disk_error).get_or_insert(copy);
        }
        result
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.note(self.file.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.note(self.file.read_exact_at(out, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.note(self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.note(self.file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(self.file.write_at(data, offset))
    }
}
