//! What a process asks about bytes and locks.

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use larder_testkit::history::{Span, Timed, data, locks};
use larder_vfs::{
    Error, FileSystem, Lock, LockKind, LockMode, LockOwner, Lookup, OpenFlags, Stability,
};

use super::{FILE, Open, PLACES, Player, root};
use crate::world::{Life, Outcome};

impl Player {
    pub(super) async fn step_of_data(&mut self, life: &Life) {
        let place = usize::try_from(self.random.below(PLACES.len() as u64)).unwrap();
        let Some(open) = &self.open else {
            let writes = self.random.below(3) > 0;
            return self.open(life, writes).await;
        };
        let (writes, is_locked) = (open.writes, open.locked.iter().any(Option::is_some));
        match self.random.below(20) {
            0..7 if writes => self.write(life, place).await,
            0..12 => {
                self.read(life, place).await;
            }
            12..14 if writes => self.sync(life).await,
            14..16 if !is_locked => {
                let more = usize::try_from(self.random.below(2)).unwrap();
                let last = (place + more).min(PLACES.len() - 1);
                let exclusive = self.random.below(3) > 0;
                self.lock(life, place..last + 1, exclusive).await;
            }
            14..17 if is_locked => {
                let place = open.locked.iter().position(Option::is_some).unwrap();
                self.unlock(life, place..place + 1).await;
            }
            _ => self.close(life).await,
        }
    }

    pub(super) async fn open(&mut self, life: &Life, writes: bool) {
        let (dir, name) = (self.root.unwrap().0, self.history.file_name);
        let found = life.call(move |client| client.lookup(&root(), dir, name.as_ref())).await;
        let entry = match found {
            Outcome::Done(Lookup::Found(entry)) => entry,
            Outcome::Unknown => return,
            other => {
                let text = format!("lookup of the file: {other:?}");
                return self.history.note(|record| record.odd.push(text));
            }
        };
        let (ino, flags) =
            (entry.ino, if writes { OpenFlags::READ_WRITE } else { OpenFlags::READ });
        let open = self.timed(life, move |client| client.open(&root(), ino, flags));
        let ((span, opened), is_attended) = life.attended(open).await;
        match opened {
            Outcome::Done(opened) => {
                let (id, since) = (opened.id, if is_attended { span.made } else { 0 });
                let (locked, exclusive) = ([None; PLACES.len()], [false; PLACES.len()]);
                let written = Vec::new();
                self.open = Some(Open { id, ino, writes, since, locked, exclusive, written });
            }
            Outcome::Refused(error) => {
                self.history.note(|record| record.odd.push(format!("open: {error}")));
            }
            Outcome::Unknown => {}
        }
    }

    async fn write(&mut self, life: &Life, place: usize) {
        let open = self.open.as_mut().unwrap();
        let (ino, id) = (open.ino, open.id);
        let value = self.history.values.fetch_add(1, SeqCst);
        let made = self.history.tick();
        let write = data::Write {
            place: (FILE, u32::try_from(place).unwrap()),
            value,
            client: life.number,
            opened: open.since,
            made,
            written: None,
            public: None,
        };
        let at = {
            let mut record = self.history.record.lock().unwrap();
            record.writes.push(write);
            record.writes.len() - 1
        };
        let written = life.call(move |client| {
            let (bytes, unstable) = (value.to_be_bytes(), Stability::Unstable);
            client.write(&root(), ino, Some(id), PLACES[place], &bytes, unstable)
        });
        if matches!(written.await, Outcome::Done(_)) {
            let now = self.history.tick();
            self.history.note(|record| record.writes[at].written = Some(now));
            open.written.push(at);
        }
    }

    /// Reads a place of the open file.
    pub(super) async fn read(&self, life: &Life, place: usize) -> Outcome<data::Read> {
        let open = self.open.as_ref().expect("it is open");
        let (ino, id) = (open.ino, open.id);
        let (span, read) = self
            .timed(life, move |client| client.read(&root(), ino, Some(id), PLACES[place], 8))
            .await;
        let bytes = match read {
            Outcome::Done(bytes) => bytes,
            Outcome::Refused(error) => return Outcome::Refused(error),
            Outcome::Unknown => return Outcome::Unknown,
        };
        // Bytes past the end of the file were never written.
        let value = <[u8; 8]>::try_from(&bytes[..]).map_or(u64::MAX, u64::from_be_bytes);
        let read = data::Read {
            place: (FILE, u32::try_from(place).unwrap()),
            value,
            client: life.number,
            opened: open.locked[place].unwrap_or(open.since),
            is_locked: open.locked[place].is_some(),
            asked: span.made,
            answered: span.answered.expect("what is done was answered"),
        };
        self.history.note(|record| record.reads.push(read));
        Outcome::Done(read)
    }

    /// From `now` on, what the client wrote to the file before `made` is public: all of it, or what
    /// was written through the open file.
    fn publish(&self, life: &Life, made: u64, is_all: bool) {
        let (now, own) = (self.history.tick(), &self.open.as_ref().unwrap().written);
        self.history.note(|record| {
            for (at, write) in record.writes.iter_mut().enumerate() {
                let is_meant = write.client == life.number && (is_all || own.contains(&at));
                if is_meant && write.written.is_some_and(|end| end < made) {
                    write.public.get_or_insert(now);
                }
            }
        });
    }

    async fn sync(&self, life: &Life) {
        let ino = self.open.as_ref().unwrap().ino;
        let (span, synced) = self.timed(life, move |client| client.fsync(&root(), ino, None)).await;
        if matches!(synced, Outcome::Done(_)) {
            self.publish(life, span.made, true);
        } else {
            self.doubt(life);
        }
    }

    /// A call has reported that data could not be sent: the client may have given it up.
    fn doubt(&self, life: &Life) {
        self.history.note(|record| {
            let own = record.writes.iter_mut().filter(|write| write.client == life.number);
            own.filter(|write| write.public.is_none()).for_each(|write| write.written = None);
        });
    }

    fn lock_owner(&self) -> LockOwner {
        LockOwner { kind: LockKind::Range, id: self.number }
    }

    fn note_lock(&self, span: Span, call: locks::Call) {
        self.history.note(|record| record.locks.push(Timed { span, call }));
    }

    async fn lock(&mut self, life: &Life, places: Range<usize>, exclusive: bool) {
        let open = self.open.as_ref().unwrap();
        let (ino, id, owner) = (open.ino, open.id, self.lock_owner());
        let range = PLACES[places.start]..PLACES[places.end - 1] + 8;
        let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
        let lock = Lock { owner, pid: 1, range, mode };
        let (span, locked) = self.timed(life, move |client| client.lock(ino, id, lock, None)).await;
        match locked {
            Outcome::Refused(Error::Locked) => return,
            Outcome::Refused(error) => {
                self.history.note(|record| record.odd.push(format!("lock: {error}")));
                return;
            }
            Outcome::Unknown => {}
            Outcome::Done(()) => {
                let open = self.open.as_mut().unwrap();
                open.locked[places.clone()].fill(Some(span.made));
                open.exclusive[places.clone()].fill(exclusive);
            }
        }
        let (owner, parts) = (self.owner(life), parts(places));
        self.note_lock(span, locks::Call::Lock { owner, parts, exclusive });
    }

    fn owner(&self, life: &Life) -> locks::Owner {
        locks::Owner { client: life.number, number: self.number }
    }

    async fn unlock(&mut self, life: &Life, places: Range<usize>) {
        let open = self.open.as_mut().unwrap();
        let (ino, id) = (open.ino, open.id);
        open.locked[places.clone()].fill(None);
        // While other processes of the mount hold the lock as well, the client does not unlock at
        // the server.
        let is_sent = open.exclusive[places.start];
        let (owner, range) = (self.lock_owner(), PLACES[places.start]..PLACES[places.start] + 8);
        let unlock = self.timed(life, move |client| client.unlock(ino, id, owner, range));
        let (span, unlocked) = unlock.await;
        match unlocked {
            Outcome::Done(()) if is_sent => self.publish(life, span.made, true),
            Outcome::Done(()) => {}
            Outcome::Refused(_) | Outcome::Unknown => self.doubt(life),
        }
        let (owner, parts) = (self.owner(life), parts(places));
        self.note_lock(span, locks::Call::Unlock { owner, parts });
    }

    pub(super) async fn close(&mut self, life: &Life) {
        let Some(open) = &self.open else { return };
        let (ino, id, owner) = (open.ino, open.id, self.lock_owner());
        let (span, flushed) =
            self.timed(life, move |client| client.flush(&root(), ino, id, Some(owner))).await;
        if matches!(flushed, Outcome::Done(())) {
            self.publish(life, span.made, false);
        } else {
            self.doubt(life);
        }
        if open.locked.iter().any(Option::is_some) {
            let (owner, parts) = (self.owner(life), parts(0..PLACES.len()));
            self.note_lock(span, locks::Call::Unlock { owner, parts });
        }
        life.call(move |client| client.release(ino, id)).await;
        self.open = None;
    }
}

fn parts(places: Range<usize>) -> Vec<locks::Part> {
    places.map(|place| (FILE, u8::try_from(place).unwrap())).collect()
}
