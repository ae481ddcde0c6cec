//! Data for which no caller waits is sent in time.

use std::time::Duration;

use larder_client::{Options, UnsentTotal};
use larder_vfs::{Error, FileSystem, Remote};

use crate::rig::{Open, READ, Random, Rig, WRITE, pass, pattern, root};

const AGE: Duration = Duration::from_secs(30);
/// Longer than the age, and than the time between two tries.
const LONG: Duration = Duration::from_secs(70);

async fn rig() -> Rig {
    let rig = Rig::new(Options { unsent_age_max: AGE, ..Options::default() }).await;
    for name in NAMES {
        rig.put(name, b"").await;
    }
    rig
}

/// The time between two tries, and a little.
const RETRY: Duration = Duration::from_secs(6);

const NAMES: [&str; 3] = ["one", "two", "three"];

/// What the server has of a file.
async fn at_server(rig: &Rig, name: &str) -> Vec<u8> {
    let top = rig.server.root().await.unwrap().handle;
    let found = rig.server.lookup(&root(), &top, name.as_ref()).await.unwrap().found.unwrap();
    rig.server.read(&root(), &found.handle, None, 0, 1 << 20).await.unwrap().data.to_vec()
}

#[tokio::test(start_paused = true)]
async fn bytes_of_an_open_file_are_at_the_server_within_their_age() {
    let rig = rig().await;
    let open = rig.open(&root(), "one", WRITE).await.unwrap();
    open.write(0, b"first").await.unwrap();
    pass(&rig.clock, AGE - Duration::from_secs(1)).await;
    assert_eq!(at_server(&rig, "one").await, b"");
    let oldest = Some(AGE - Duration::from_secs(1));
    let unsent = UnsentTotal { files: 1, bytes: 5, is_bound: false, oldest };
    assert_eq!(rig.client.unsent(&|_| true), unsent);
    open.write(5, b" second").await.unwrap();
    pass(&rig.clock, Duration::from_secs(2)).await;
    assert_eq!(at_server(&rig, "one").await, b"first second");
    assert_eq!(rig.client.unsent(&|_| true), UnsentTotal::default());
    // The age counts from here.
    open.write(0, b"third").await.unwrap();
    assert_eq!(rig.client.unsent(&|_| true).oldest, Some(Duration::ZERO));
    pass(&rig.clock, AGE - Duration::from_secs(1)).await;
    assert_eq!(at_server(&rig, "one").await, b"first second");
    pass(&rig.clock, Duration::from_secs(2)).await;
    assert_eq!(at_server(&rig, "one").await, b"third second");
    let writes = rig.server.calls("write");
    pass(&rig.clock, LONG).await;
    open.close().await.unwrap();
    assert_eq!(rig.server.calls("write"), writes, "nothing is sent twice");
}

/// The server is full when the engine sends, and has room later: every open file is told of the
/// failure once, at its fsync, or at its close if it was open for writing.
#[tokio::test(start_paused = true)]
async fn each_open_file_is_told_once_of_a_delayed_write_that_failed() {
    let rig = rig().await;
    let open = async |flags| rig.open(&root(), "one", flags).await.unwrap();
    let (first, second, reader) = (open(WRITE).await, open(WRITE).await, open(READ).await);
    first.write(0, b"bytes").await.unwrap();
    rig.server.set_full(true);
    pass(&rig.clock, AGE + Duration::from_secs(1)).await;
    assert_eq!(rig.client.unsaved()[0].failure, Some(Error::NoSpace));
    rig.server.set_full(false);
    let sync = async |open: &Open<'_>| {
        rig.client.fsync(&root(), open.ino, Some(open.id)).wait().await.map(drop)
    };
    assert_eq!(sync(&first).await, Err(Error::NoSpace));
    assert_eq!(rig.client.unsaved(), []);
    let later = open(WRITE).await;
    assert_eq!(second.flush().await, Err(Error::NoSpace));
    assert_eq!((reader.flush().await, sync(&reader).await), (Ok(()), Err(Error::NoSpace)));
    for open in [&first, &second, &reader, &later] {
        assert_eq!(sync(open).await, Ok(()));
        assert_eq!(open.flush().await, Ok(()));
    }
    assert_eq!(at_server(&rig, "one").await, b"bytes");
}

#[tokio::test(start_paused = true)]
async fn what_a_close_sent_is_not_sent_again() {
    let rig = rig().await;
    rig.put("one", b"closed").await;
    let calls = rig.server.calls_total();
    pass(&rig.clock, 2 * AGE).await;
    assert_eq!(rig.server.calls_total(), calls);
}

/// A server that has no room may have some later. A process that has the file open is told, by its
/// next fsync or close.
#[tokio::test(start_paused = true)]
async fn what_the_server_refuses_while_the_file_is_open_is_told_and_tried_again() {
    let rig = rig().await;
    let open = rig.open(&root(), "one", WRITE).await.unwrap();
    open.write(0, b"bytes").await.unwrap();
    rig.server.set_full(true);
    pass(&rig.clock, AGE + Duration::from_secs(1)).await;
    rig.server.set_full(false);
    pass(&rig.clock, AGE).await;
    assert_eq!(at_server(&rig, "one").await, b"bytes");
    assert_eq!(open.flush().await, Err(Error::NoSpace));
    open.close().await.unwrap();
    assert_eq!(rig.set_aside(), []);
}

#[tokio::test(start_paused = true)]
async fn a_sync_sends_what_it_is_asked_for() {
    let rig = rig().await;
    let (one, two) = (rig.find("one").await.unwrap(), rig.find("two").await.unwrap());
    let opens = [
        rig.open(&root(), "one", WRITE).await.unwrap(),
        rig.open(&root(), "two", WRITE).await.unwrap(),
    ];
    for open in &opens {
        open.write(0, b"bytes").await.unwrap();
    }
    rig.client.sync(&|ino| ino == two).await.unwrap();
    assert_eq!(at_server(&rig, "one").await, b"");
    assert_eq!(at_server(&rig, "two").await, b"bytes");
    assert_eq!(rig.client.unsent(&|ino| ino == two).files, 0);
    assert_eq!(rig.client.unsent(&|_| true).files, 1);
    rig.server.time_out();
    assert_eq!(rig.client.sync(&|_| true).await, Err(Error::TimedOut));
    assert_eq!(rig.client.unsent(&|ino| ino == one).bytes, 5);
    rig.server.reconnect();
    rig.client.sync(&|_| true).await.unwrap();
    assert_eq!(at_server(&rig, "one").await, b"bytes");
}

/// A file of a history, open or not.
struct Play<'a> {
    rig: &'a Rig,
    name: &'static str,
    content: Vec<u8>,
    open: Option<Open<'a>>,
}

impl Play<'_> {
    async fn write(&mut self, random: &mut Random) {
        if self.open.is_none() {
            self.open = Some(self.rig.open(&root(), self.name, WRITE).await.unwrap());
        }
        let offset = random.below(5000) as usize;
        let bytes = pattern(random.below(u64::MAX), 1 + random.below(3000) as usize);
        let end = (offset + bytes.len()).max(self.content.len());
        self.content.resize(end, 0);
        self.content[offset..offset + bytes.len()].copy_from_slice(&bytes);
        self.open.as_ref().unwrap().write(offset as u64, &bytes).await.unwrap();
    }

    /// What the server does not accept stays unsent, so errors change nothing here.
    async fn sync(&self) {
        if let Some(open) = &self.open {
            let _ = open.flush().await;
        }
    }

    async fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = open.close().await;
        }
    }
}

/// A few steps of writers, and of a server that is away or full at times. Once the server was
/// available for long enough it has every byte that was written, whether the files are open or not.
async fn history(rig: &Rig, random: &mut Random, files: &mut [Play<'_>]) {
    for _ in 0..6 {
        let file = &mut files[random.below(3) as usize];
        let pause = Duration::from_secs(random.below(40));
        match random.below(10) {
            0..=3 => file.write(random).await,
            4 => file.sync().await,
            5 => file.close().await,
            6 => rig.server.time_out(),
            7 => rig.server.reconnect(),
            8 => {
                // Data of files that are no longer open would be set aside.
                rig.server.reconnect();
                pass(&rig.clock, RETRY).await;
                rig.server.set_full(true);
                pass(&rig.clock, pause).await;
                rig.server.set_full(false);
            }
            _ => pass(&rig.clock, pause).await,
        }
    }
    rig.server.reconnect();
    pass(&rig.clock, LONG).await;
    for file in files {
        assert!(at_server(rig, file.name).await == file.content, "{}", file.name);
    }
    assert_eq!(rig.client.unsent(&|_| true), UnsentTotal::default());
}

#[tokio::test(start_paused = true)]
async fn after_each_history_everything_is_at_the_server() {
    const HISTORIES: u64 = 10_000;
    let seed = std::env::var("LARDER_SEED").ok().map_or(1, |seed| seed.parse().unwrap());
    println!("LARDER_SEED={seed}");
    let (rig, mut random) = (rig().await, Random(seed));
    let file = |name| Play { rig: &rig, name, content: Vec::new(), open: None };
    let mut files = NAMES.map(file);
    for _ in 0..HISTORIES {
        history(&rig, &mut random, &mut files).await;
    }
    println!("{HISTORIES} histories, {} writes at the server", rig.server.calls("write"));
}

/// A writer that is faster than the server waits for the server: the unsent data of one file is
/// bounded, in whichever mode it was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_faster_than_the_server_waits_for_it() {
    const BOUND: u64 = 4000;
    let options = Options { dirty_bytes_max: BOUND / 4, ..Options::default() };
    let rig = Rig::new(options).await;
    let open = rig.create("file").await;
    rig.server.hold(Some("write"));
    let is_held = std::cell::Cell::new(true);
    let write = async {
        for at in (0..2 * BOUND).step_by(500) {
            open.write(at, &[7; 500]).await.unwrap();
            let unsent = rig.client.unsent(&|_| true).bytes;
            assert!(unsent <= BOUND + 500 || !is_held.get(), "{unsent} bytes at {at}");
        }
    };
    let release = async {
        while rig.client.unsent(&|_| true).bytes <= BOUND {
            tokio::task::yield_now().await;
        }
        is_held.set(false);
        rig.server.hold(None);
    };
    tokio::join!(write, release);
    open.close().await.unwrap();
    assert_eq!(rig.foreigner().await.cat("file").await, vec![7; 2 * BOUND as usize]);
}

/// A WRITE of no bytes, which NFS allows, is no change: nothing is unsent, the file's time stays,
/// and what is written next is cached as usual.
#[tokio::test(start_paused = true)]
async fn a_write_of_no_bytes_changes_nothing() {
    let rig = Rig::new(crate::kept::generated()).await;
    rig.put("file", b"").await;
    let before = rig.stat("file").await.attr.mtime;
    pass(&rig.clock, Duration::from_secs(2)).await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"").await.unwrap();
    assert_eq!(rig.stat("file").await.attr.mtime, before);
    assert_eq!(rig.client.unsent(&|_| true), UnsentTotal::default());
    open.close().await.unwrap();
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"bytes").await.unwrap();
    assert_eq!((rig.client.unsent(&|_| true).bytes, rig.server.calls("write")), (5, 0));
    open.close().await.unwrap();
}

/// A process that asks for the time of a short file before it closes it is told the server's, as
/// after the close. Nothing is sent for the kernel itself, of long files, again and again, or while
/// the class keeps it here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_that_is_told_before_a_close_is_the_servers() {
    let rig = Rig::new(Options::default()).await;
    let writes = || rig.server.calls("write");
    let stat = async |ino| rig.client.stat(&root(), ino).wait().await.unwrap().attr.mtime;
    let getattr = async |ino| rig.client.getattr(&root(), ino).wait().await.unwrap().attr.mtime;
    let open = rig.create("file").await;
    open.write(0, b"one").await.unwrap();
    let here = getattr(open.ino).await;
    assert_eq!(writes(), 0, "for the kernel");
    let told = stat(open.ino).await;
    assert!(told != here, "the clocks differ");
    assert_eq!(writes(), 1);
    open.flush().await.unwrap();
    assert_eq!((writes(), stat(open.ino).await), (1, told));
    for (round, is_sent) in [true, false, false].into_iter().enumerate() {
        open.write(3 + round as u64, b"+").await.unwrap();
        let before = writes();
        stat(open.ino).await;
        assert_eq!(writes() > before, is_sent, "{round}");
    }
    open.close().await.unwrap();

    let again = rig.open(&root(), "file", WRITE).await.unwrap();
    again.write(0, b"anew").await.unwrap();
    let before = writes();
    stat(again.ino).await;
    assert_eq!(writes(), before + 1, "it was closed in between");
    again.write(1 << 20, b"long").await.unwrap();
    let before = writes();
    stat(again.ino).await;
    assert_eq!(writes(), before);
    again.close().await.unwrap();
}
