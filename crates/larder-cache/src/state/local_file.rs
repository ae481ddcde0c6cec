//! Which local file a file has, and how far it may be trusted without being read.

use std::sync::{Arc, Weak};

use crate::backing::BackingFile;
use crate::unwritten::UnwrittenFile;

/// The local file of a file, which may have none.
#[derive(Debug, Default)]
pub(crate) struct LocalFile {
    /// Its number; 0 without one.
    serial: u64,
    /// It was checked since loading.
    is_checked: bool,
    /// It is the one that the index recorded, or has been verified as a whole: it may be handed
    /// out without reading it.
    is_stamped: bool,
    /// It waits in memory to be written.
    unwritten: Option<Arc<UnwrittenFile>>,
    backing: Weak<BackingFile>,
}

impl LocalFile {
    /// There is no local file to check.
    pub(crate) fn none() -> LocalFile {
        LocalFile { is_checked: true, is_stamped: true, ..LocalFile::default() }
    }

    /// One that an index names and that was not checked yet.
    pub(crate) fn found(serial: u64) -> LocalFile {
        if serial == 0 { LocalFile::none() } else { LocalFile { serial, ..LocalFile::default() } }
    }

    /// One that an earlier run changed: its state was not derived from its stamp.
    pub(crate) fn changed(serial: u64) -> LocalFile {
        LocalFile { serial, is_checked: true, ..LocalFile::default() }
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    pub(crate) fn is_there(&self) -> bool {
        self.serial != 0
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.is_checked
    }

    pub(crate) fn is_stamped(&self) -> bool {
        self.is_stamped
    }

    /// It was created.
    pub(crate) fn create(&mut self, serial: u64) {
        debug_assert!(
            !self.is_there() && serial != 0,
            "a file has one local file, which has a number"
        );
        self.serial = serial;
    }

    /// It was created in memory.
    pub(crate) fn create_unwritten(&mut self, serial: u64, file: Arc<UnwrittenFile>) {
        self.create(serial);
        self.unwritten = Some(file);
    }

    /// The bytes are in another local file now, which the kernel does not have.
    pub(crate) fn move_to(&mut self, serial: u64) {
        debug_assert!(
            self.is_there() && self.unwritten.is_none() && ![0, self.serial].contains(&serial),
            "bytes move from a local file on the disk to another one"
        );
        (self.serial, self.backing) = (serial, Weak::new());
    }

    /// It waits in memory to be written.
    pub(crate) fn unwritten(&self) -> Option<&Arc<UnwrittenFile>> {
        self.unwritten.as_ref()
    }

    /// It is on the disk.
    pub(crate) fn set_written(&mut self) {
        debug_assert!(!self.is_handed_out(), "the kernel has no local file that was in memory");
        self.unwritten = None;
    }

    /// It exists with the stamp in the index, or not.
    pub(crate) fn set_checked(&mut self, as_recorded: bool) {
        self.is_checked = true;
        self.is_stamped = as_recorded;
    }

    /// All of it was read and is right.
    pub(crate) fn set_verified(&mut self) {
        self.is_stamped = true;
    }

    /// The kernel's handle to it, if the kernel has it.
    pub(crate) fn handed_out(&self) -> Option<Arc<BackingFile>> {
        self.backing.upgrade()
    }

    /// Whether the kernel has it.
    pub(crate) fn is_handed_out(&self) -> bool {
        self.backing.strong_count() > 0
    }

    /// Whether this file was handed out as the present local file.
    pub(crate) fn is_handed_out_as(&self, backing: &Arc<BackingFile>) -> bool {
        std::ptr::eq(self.backing.as_ptr(), Arc::as_ptr(backing))
    }

    /// The kernel gets it.
    pub(crate) fn hand_out(&mut self, backing: &Arc<BackingFile>) {
        debug_assert!(
            self.is_there() && self.unwritten.is_none(),
            "the kernel gets a local file that is on the disk"
        );
        self.backing = Arc::downgrade(backing);
    }
}
