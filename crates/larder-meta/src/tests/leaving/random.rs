//! Random histories of writers, disks that are added, removed, kept and away, and servers that
//! crash, compared with what files may contain.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_wire::meta::Status;
use larder_wire::meta::calls;
use larder_wire::meta::words::{ByteRange, DiskId, FileId, OpenId};

use super::{B, Clients, Held, content, disk_of, is_there, move_all};
use crate::rights::Caller;
use crate::tests::random::Random;
use crate::tests::rig::{Rig, size};
use crate::volume::{self, Tenure};

const DISK_BLOCKS: u64 = 14;
const DISKS_MAX: usize = 4;
const FILE_BLOCKS: u64 = 5;

/// A block of a file.
type Block = (FileId, u64);

/// One that a client may write to.
type ClientBlock = (usize, Block);

struct World {
    rig: Rig,
    random: Random,
    files: Vec<FileId>,
    /// What each block may have: what was committed last, and what was written in place since.
    can_be: BTreeMap<Block, Vec<u64>>,
    /// Blocks that a client may write to.
    held: BTreeMap<ClientBlock, Held>,
    clients: Clients,
    away: Vec<DiskId>,
    next: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rig = Rig::with_disks(&[DISK_BLOCKS; 3]);
        let mut files = Vec::new();
        for name in ["a", "b", "c"] {
            let opened = rig.create(&Caller::root(), FileId::ROOT, name).unwrap();
            rig.close(opened.open).unwrap();
            files.push(opened.file.after.file);
        }
        let clients = Clients::new(&mut rig);
        let (can_be, held, away) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        World { rig, random: Random(seed * 2 + 1), files, can_be, held, clients, away, next: 0 }
    }

    fn block(&mut self) -> Block {
        (self.random.one_of(&self.files), self.random.below(FILE_BLOCKS))
    }

    fn can_be(&mut self, block: Block) -> &mut Vec<u64> {
        self.can_be.entry(block).or_insert_with(|| vec![0])
    }

    fn hold(&mut self) {
        let block = self.block();
        match Held::get(&mut self.rig, block.0, block.1) {
            Ok(held) => drop(self.held.insert((self.clients.now, block), held)),
            Err(status) => assert_eq!(status, Status::NoSpace),
        }
    }

    /// One of the blocks that a client may write to is written, or committed.
    fn use_held(&mut self, do_commit: bool) {
        if self.held.is_empty() {
            return;
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        let (of, held) = self.held.iter().nth(at).unwrap();
        let (of, mut held) = (*of, held.clone());
        let (client, block) = of;
        match held.written.filter(|_| do_commit) {
            Some(what) => {
                self.clients.turn_to(&mut self.rig, client);
                match held.commit(&mut self.rig) {
                    Ok(()) => self.committed(of, &held, what),
                    Err(Status::NotAllocated | Status::Changed) => drop(self.held.remove(&of)),
                    Err(status) => panic!("{status:?}"),
                }
            }
            None => {
                self.next += 1;
                let what = self.next;
                if held.write(&self.rig, what) && held.is_in_place() {
                    self.can_be(block).push(what);
                }
                self.held.insert(of, held);
            }
        }
    }

    fn committed(&mut self, of: ClientBlock, held: &Held, what: u64) {
        let can_be = self.can_be(of.1);
        if held.is_in_place() {
            // What others have written there since is there.
            let before = can_be.iter().position(|one| *one == what).unwrap_or(0);
            can_be.drain(..before);
        } else {
            *can_be = vec![what];
            // It is the file's now, and its client asks before it writes there again.
            self.held.remove(&of);
        }
    }

    fn read(&mut self) {
        let block = self.block();
        self.look(block);
    }

    fn look(&mut self, block: Block) {
        let has = content(&mut self.rig, block.0, block.1);
        let can_be = self.can_be(block);
        assert!(can_be.contains(&has), "{block:?} is {has}, and not {can_be:?}");
    }

    fn cut(&mut self) {
        let (file, left) = self.block();
        self.rig.set(file, size(left * B)).unwrap();
        self.rig.set(file, size(FILE_BLOCKS * B)).unwrap();
        for block in left..FILE_BLOCKS {
            *self.can_be((file, block)) = vec![0];
        }
    }

    fn preallocate(&mut self) {
        let (file, block) = self.block();
        let (sequence, open) = (self.rig.next(), OpenId::NONE);
        let range = ByteRange::from(block * B..FILE_BLOCKS * B);
        let call = calls::Preallocate { sequence, file, open, range };
        let done = self.rig.call(&Caller::root(), call);
        assert!(matches!(done, Ok(_) | Err(Status::NoSpace)));
    }

    /// The session ends with all that it has not committed.
    fn writer_dies(&mut self) {
        let session = self.rig.session;
        self.rig.call(&Caller::root(), calls::EndSession { session }).unwrap();
        self.next += 1;
        let client = [self.clients.now as u8 + 1; 16];
        self.rig.session = self.rig.begin_session(client, self.next).unwrap().session;
        self.rig.sequence = 0;
        let now = self.clients.now;
        self.held.retain(|(client, _), _| *client != now);
    }

    fn crash(&mut self) {
        let rig = std::mem::replace(&mut self.rig, Rig::new(1));
        self.rig = rig.crash();
    }

    fn disks(&self) -> Vec<DiskId> {
        volume::disks(&self.rig.engine).unwrap().into_iter().map(|(disk, _)| disk).collect()
    }

    fn go_or_come(&mut self) {
        let disks = self.disks();
        if disks.is_empty() {
            return;
        }
        let disk = self.random.one_of(&disks);
        match self.away.iter().position(|away| *away == disk) {
            Some(at) => {
                self.away.remove(at);
                self.rig.disks.come_back(disk);
            }
            None => {
                self.away.push(disk);
                self.rig.disks.go_away(disk);
            }
        }
    }

    /// Some time passes, in which both clients renew their sessions.
    fn pass(&mut self) {
        self.rig.wait(Duration::from_secs(1));
        for client in [0, 1] {
            self.clients.turn_to(&mut self.rig, client);
            self.rig.attributes(FileId::ROOT).unwrap();
        }
    }

    fn enrol(&mut self) {
        if self.disks().len() < DISKS_MAX {
            self.rig.enrol(disk_of(DISK_BLOCKS), volume::Joining::Anywhere).unwrap();
        }
    }

    /// A disk is to be removed, or kept, by the server or while there is none.
    fn change(&mut self, is_kept: bool) {
        let disks = self.disks();
        if disks.is_empty() {
            return;
        }
        let disk = self.random.one_of(&disks);
        let before = volume::copies(&self.rig.engine).unwrap().disks[&disk];
        let is_served = self.random.below(3) > 0;
        if !is_served {
            self.rig.end();
        }
        let engine = &self.rig.engine;
        let done = match (is_kept, is_served) {
            (true, true) => self.rig.keep_disk(disk),
            (true, false) => volume::keep_disk(engine, disk).map(|kept| kept.tenure),
            (false, true) => self.rig.remove_disk(disk),
            (false, false) => volume::remove_disk(engine, disk).map(|removal| removal.tenure),
        };
        match done {
            Ok(Tenure::Stays) => assert!(is_kept && before.leaves),
            Ok(Tenure::Leaves) => assert!(!is_kept && before.bytes_free < before.bytes),
            Ok(Tenure::Gone) => assert!(!is_kept && before.bytes_free == before.bytes),
            // It does not leave, or there is no room.
            Err(_) => assert!(!before.leaves),
        }
        if !is_served {
            self.crash();
        }
    }

    fn step(&mut self) {
        let client = self.random.below(2) as usize;
        self.clients.turn_to(&mut self.rig, client);
        match self.random.below(48) {
            0..8 => self.hold(),
            8..16 => self.use_held(false),
            16..22 => self.use_held(true),
            22..26 => self.read(),
            26 => self.cut(),
            27 => self.preallocate(),
            28 => self.writer_dies(),
            29 => self.crash(),
            30..32 => self.go_or_come(),
            32 => self.enrol(),
            33..36 => self.change(false),
            36 => self.change(true),
            37..41 => self.rig.begin_moves(),
            41..44 => drop(self.rig.copy_moves()),
            44..47 => self.rig.end_moves(),
            _ => self.pass(),
        }
    }

    /// All disks are there, and there is room: what leaves is gone, and nothing else is.
    fn heal(&mut self) {
        for disk in std::mem::take(&mut self.away) {
            self.rig.disks.come_back(disk);
        }
        let wide = self.rig.enrol(disk_of(200), volume::Joining::Anywhere).unwrap();
        let leave: Vec<DiskId> = {
            let all = volume::copies(&self.rig.engine).unwrap().disks;
            all.into_iter().filter(|(_, about)| about.leaves).map(|(disk, _)| disk).collect()
        };
        let stay = self.disks().len() - leave.len();
        self.rig.copy_moves();
        self.rig.end_moves();
        for _ in 0..4 {
            self.pass();
            move_all(&mut self.rig);
        }
        for disk in leave {
            assert!(!is_there(&self.rig, disk), "{disk:?}");
        }
        assert_eq!(self.disks().len(), stay);
        assert!(is_there(&self.rig, wide));
        for block in self.can_be.keys().copied().collect::<Vec<_>>() {
            self.look(block);
        }
        for client in [0, 1] {
            self.clients.turn_to(&mut self.rig, client);
            self.writer_dies();
        }
        self.rig.check();
        let all = volume::copies(&self.rig.engine).unwrap().disks;
        let free: u64 = all.values().map(|about| about.bytes_free).sum();
        assert_eq!(self.rig.free_bytes(), free);
    }
}

#[test]
fn files_are_what_was_written_whichever_disk_is_removed_and_whatever_dies() {
    for seed in 0..100 {
        let mut world = World::new(seed);
        let steps = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..200 {
                world.step();
            }
            world.heal();
        }));
        assert!(steps.is_ok(), "seed {seed}");
    }
}
