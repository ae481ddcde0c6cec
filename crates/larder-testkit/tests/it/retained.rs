//! Files of class `scratch`: their bytes stay with the client that wrote them until another one
//! asks, over deaths of all processes and machines.
//!
//! Clients write, read and remove a few files one after the other, between kills. A model has what
//! each of them may find: what was closed last; that the file is lost, only after something died
//! that had its bytes; after a crash of the metadata server's machine also how it was a moment
//! before. Never are there no bytes, other ones, or a part of them.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use larder_io::Image;
use larder_meta::volume;
use larder_vfs::{
    Cred, Entry, Error, FileSystem, Ino, Lookup, OpenFlags, Removal, SetAttr, Stability,
};
use tokio::runtime::{Builder, Runtime};

use crate::histories::number;
use crate::player::Random;
use crate::world::{Life, Outcome, World};

const CLIENTS: usize = 3;
const FILES: usize = 4;
const STEPS: u64 = 60;
/// One step in so many is a kill.
const KILL_EVERY: u64 = 8;
/// Games, unless `LARDER_HISTORIES` says otherwise.
const GAMES: u64 = 2;

/// What a client may find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Absent,
    Lost,
    /// What was written with this number.
    Bytes(u64),
}

/// What is known of a file.
#[derive(Clone, Debug)]
struct File {
    /// The client that wrote it last. What it has of a lost file it may show until it knows.
    writer: usize,
    for_writer: BTreeSet<Found>,
    for_others: BTreeSet<Found>,
    /// All that was ever closed or removed: a crash may bring back the last of it.
    before: BTreeSet<Found>,
}

impl File {
    fn new() -> File {
        let absent: BTreeSet<Found> = [Found::Absent].into();
        File { writer: 0, for_writer: absent.clone(), for_others: absent.clone(), before: absent }
    }

    /// A client has closed or removed it.
    fn is(&mut self, client: usize, now: Found) {
        self.before.extend(&self.for_others);
        (self.for_writer, self.for_others) = ([now].into(), [now].into());
        self.writer = client;
    }

    /// What has died may have had its bytes.
    fn may_be(&mut self, more: impl IntoIterator<Item = Found> + Clone) {
        self.for_writer.extend(more.clone());
        self.for_others.extend(more);
    }

    /// A client has found this.
    fn found(&mut self, client: usize, found: Found, what: &str) {
        let may_be = if client == self.writer { &self.for_writer } else { &self.for_others };
        assert!(may_be.contains(&found), "{what}: client {client} found {found:?} of {self:?}");
        if client != self.writer {
            self.for_others = [found].into();
            if matches!(found, Found::Bytes(_)) {
                // The writer has sent it.
                self.for_writer = [found].into();
            }
        }
    }
}

/// What is written with a number.
fn content(number: u64) -> Vec<u8> {
    let length = 1 + usize::try_from(number * 7919 % 30_000).unwrap();
    number.to_be_bytes().into_iter().cycle().take(length).collect()
}

fn life(world: &World, client: usize) -> Life {
    world.lives(client).borrow().clone().unwrap()
}

/// Makes a call that a client which lives can make.
macro_rules! done {
    ($life:expr, $make:expr) => {
        match $life.call($make).await {
            Outcome::Done(done) => Ok(done),
            Outcome::Refused(error) => Err(error),
            Outcome::Unknown => panic!("nobody has died"),
        }
    };
}

async fn look(life: &Life, name: &str) -> Result<Option<Ino>, Error> {
    let name = name.to_owned();
    let found =
        done!(life, move |client| { client.lookup(&Cred::root(), Ino::ROOT, OsStr::new(&name)) })?;
    Ok(match found {
        Lookup::Found(Entry { ino, .. }) => Some(ino),
        Lookup::Absent { .. } => None,
    })
}

/// Makes the file, or empties it, writes it and closes it.
async fn write(life: &Life, name: &str, bytes: Vec<u8>) -> Result<(), Error> {
    let flags = OpenFlags { truncate: true, ..OpenFlags::WRITE };
    let (ino, open) = match look(life, name).await? {
        Some(ino) => {
            let open = done!(life, move |client| client.open(&Cred::root(), ino, flags))?;
            (ino, open.id)
        }
        None => {
            let (set, name) =
                (SetAttr { mode: Some(0o644), ..SetAttr::default() }, name.to_owned());
            let made = done!(life, move |client| {
                client.create(&Cred::root(), Ino::ROOT, OsStr::new(&name), set, flags)
            })?;
            (made.0.ino, made.1.id)
        }
    };
    let wrote = done!(life, move |client| {
        client.write(&Cred::root(), ino, Some(open), 0, &bytes, Stability::Unstable)
    });
    let closed = done!(life, move |client| client.flush(&Cred::root(), ino, open, None));
    done!(life, move |client| client.release(ino, open))?;
    wrote.and(closed)
}

async fn read(life: &Life, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let Some(ino) = look(life, name).await? else { return Ok(None) };
    let open = done!(life, move |client| client.open(&Cred::root(), ino, OpenFlags::READ))?.id;
    let read = done!(life, move |client| client.read(&Cred::root(), ino, Some(open), 0, 40_000));
    done!(life, move |client| client.release(ino, open))?;
    read.map(|bytes| Some(bytes.to_vec()))
}

async fn find(life: &Life, name: &str) -> Found {
    match read(life, name).await {
        Ok(None) | Err(Error::NotFound | Error::Stale) => Found::Absent,
        Err(Error::Lost) => Found::Lost,
        Err(error) => panic!("{name}: {error}"),
        Ok(Some(bytes)) => {
            let number = bytes.first_chunk().map(|first| u64::from_be_bytes(*first));
            let number = number.or_else(|| (1..).find(|one| content(*one) == bytes));
            let number = number.unwrap();
            assert!(content(number) == bytes, "{name}: {} bytes of {number}", bytes.len());
            Found::Bytes(number)
        }
    }
}

async fn remove(life: &Life, name: &str) -> Result<(), Error> {
    let name = name.to_owned();
    done!(life, move |client| client.remove(
        &Cred::root(),
        Ino::ROOT,
        OsStr::new(&name),
        Removal::File
    ))
    .map(drop)
}

struct Game {
    world: World,
    random: Random,
    files: Vec<File>,
    number: u64,
    /// Kills after which something may be lost.
    losing: usize,
}

impl Game {
    fn pick(&mut self, all: usize) -> usize {
        usize::try_from(self.random.below(all as u64)).unwrap()
    }

    async fn step(&mut self, what: &str) {
        let (client, at) = (self.pick(CLIENTS), self.pick(FILES));
        let (life, name) = (life(&self.world, client), format!("file{at}"));
        let what = format!("{what}, {name}");
        match self.random.below(10) {
            0..4 => {
                self.number += 1;
                let written = write(&life, &name, content(self.number)).await;
                match written {
                    Ok(()) => self.files[at].is(client, Found::Bytes(self.number)),
                    // It may be gone since a crash, which this client has not heard of before.
                    Err(Error::Stale | Error::Lost) if self.files[at].for_writer.len() > 1 => {}
                    Err(error) => panic!("{what}: client {client}: {error}"),
                }
            }
            4 => match remove(&life, &name).await {
                Ok(()) => self.files[at].is(client, Found::Absent),
                Err(Error::NotFound) => self.files[at].found(client, Found::Absent, &what),
                Err(error) => panic!("{what}: {error}"),
            },
            _ => {
                let found = find(&life, &name).await;
                self.files[at].found(client, found, &what);
            }
        }
    }

    /// Kills something, which begins again.
    fn kill(&mut self) -> &'static str {
        let image = match self.random.below(3) {
            0 => Image::Torn(self.random.below(1 << 32)),
            _ => Image::Synced,
        };
        let client = self.pick(CLIENTS);
        match self.random.below(6) {
            0 | 1 => {
                self.world.kill_client(client, Image::Written);
                self.world.begin(client);
                "a client's process"
            }
            2 => {
                self.world.kill_client(client, image);
                self.world.begin(client);
                self.losing += 1;
                let of_client = self.files.iter_mut().filter(|file| file.writer == client);
                of_client.for_each(|file| file.may_be([Found::Lost]));
                "a client's machine"
            }
            3 => {
                self.world.volume.kill_meta(Image::Written);
                assert_eq!(self.world.volume.check(), Vec::<String>::new());
                self.world.volume.start();
                "the metadata server"
            }
            4 => {
                self.world.volume.kill_meta(image);
                assert_eq!(self.world.volume.check(), Vec::<String>::new());
                self.world.volume.start();
                self.losing += 1;
                for file in &mut self.files {
                    let before = file.before.clone();
                    file.may_be([Found::Lost, Found::Absent]);
                    file.may_be(before);
                }
                "the metadata server's machine"
            }
            _ => {
                let memory = self.world.volume.disks();
                self.world.volume.kill_disk(memory, Image::Written);
                self.world.volume.start();
                self.losing += 1;
                self.files.iter_mut().for_each(|file| file.may_be([Found::Lost]));
                "the memory disk"
            }
        }
    }
}

fn play(seed: u64, runtime: &Runtime) {
    let world = World::scratch(CLIENTS);
    let files = vec![File::new(); FILES];
    let mut game = Game { world, random: Random(seed), files, number: 0, losing: 0 };
    let mut last = "nothing";
    for step in 0..STEPS {
        if game.random.below(KILL_EVERY) == 0 {
            last = game.kill();
            println!("seed {seed}, step {step}: {last} dies");
        }
        runtime.block_on(game.step(&format!("seed {seed}, step {step}, after {last}")));
        if game.world.late_returns() > 0 {
            // On a machine that is so busy a client says that bytes are lost.
            println!("seed {seed}: a client was too slow");
            return;
        }
    }
    let told = game.world.volume.ask(|engine| (volume::losses(engine), volume::lost(engine)));
    let (losses, lost) = told.expect("it is served");
    let (losses, lost) = (losses.unwrap(), lost.unwrap());
    assert!(losses.iter().map(|loss| loss.number).eq(1..=losses.len() as u64), "{losses:?}");
    assert!(losses.len() <= game.losing, "seed {seed}: {losses:?} after {}", game.losing);
    for path in lost.values().filter_map(|lost| lost.path.as_ref()) {
        let at: usize = String::from_utf8_lossy(path)["/file".len()..].parse().unwrap();
        assert!(game.files[at].for_others.contains(&Found::Lost), "seed {seed}: {path:?} is lost");
    }
    game.world.volume.kill_meta(Image::Synced);
    assert_eq!(game.world.volume.check(), Vec::<String>::new());
    game.world.volume.start();
}

/// `LARDER_HISTORIES` and `LARDER_SEED` play others.
#[test]
fn retained_bytes_are_there_or_lost_whoever_dies() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let first = number("LARDER_SEED").unwrap_or(1);
    for seed in first..first + number("LARDER_HISTORIES").unwrap_or(GAMES) {
        play(seed, &runtime);
    }
}
