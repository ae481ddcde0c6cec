//! Late commits.

use std::sync::atomic::Ordering;

use larder_wire::meta::Res;
use larder_wire::meta::calls::{self, MakeWhat, Opened};
use larder_wire::meta::words::{ByteRange, FileId, IfExists, LeaseKind, Medium, Mode};

use super::{Rig, dentry, mode};
use crate::committer::Event;
use crate::rights::Caller;

impl Rig {
    /// The machine crashes, and keeps so many of the commits that are not durable; another server
    /// begins on what is left. Memory disks on other machines go on.
    pub(crate) fn crash_of_machine(self, kept: usize) -> Rig {
        let engine = self.engine.after_crash_of_machine(kept);
        let mut rig = self.over_after(engine);
        rig.resume_all();
        rig
    }

    /// The engine makes late commits durable, if that is asked for, and the server hears of it.
    pub(crate) fn sync(&mut self) -> bool {
        let Some(last) = self.syncing.lock().unwrap().take() else { return false };
        let number = last.load(Ordering::SeqCst);
        let done = crate::engine::Engine::sync(&self.engine).map(|()| number);
        self.event(Event::Synced(done));
        true
    }

    /// The same until nothing is late.
    pub(crate) fn sync_all(&mut self) {
        while self.sync() {}
    }

    /// Makes anything but a regular file, in a class whose bytes may be on this medium alone.
    pub(crate) fn make(
        &mut self,
        medium: Medium,
        (dir, text): (FileId, &str),
        what: MakeWhat,
    ) -> Res<FileId> {
        let (sequence, dentry, set) = (self.next(), dentry(dir, text), mode(0o755));
        let call = calls::Make { sequence, dentry, what, set, medium };
        self.call(&Caller::root(), call).map(|made| made.made.file)
    }

    /// Opens a new file of a class whose bytes may be in one memory alone.
    pub(crate) fn create_volatile(&mut self, dir: FileId, text: &str) -> Res<Opened> {
        let create = calls::Create {
            dentry: dentry(dir, text),
            set: mode(0o644),
            if_exists: IfExists::Open,
        };
        let (sequence, what) = (self.next(), calls::OpenWhat::Create(create));
        let range = ByteRange { offset: 0, length: 8192 };
        let (lease, allocate) = (LeaseKind::None, Some(Medium::Memory(1)));
        let call = calls::Open { sequence, what, mode: Mode::ReadWrite, lease, range, allocate };
        self.call(&Caller::root(), call)
    }
}
