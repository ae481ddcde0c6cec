//! Copies within the server.

use std::os::fd::AsFd;

use larder_client::Options;
use larder_vfs::{Error, FileSystem, OpenOffset, Remote, Result, Stability, Trouble};

use crate::passthrough::{another_client_at, content_of, create_written, in_real_time};
use crate::rig::{Open, READ, Random, Rig, WRITE, pattern, root};

/// Long enough to be copied by the server.
const LONG: usize = 600_000;

fn spot(open: &Open<'_>, offset: u64) -> OpenOffset {
    OpenOffset { ino: open.ino, open: open.id, offset }
}

async fn copy(rig: &Rig, from: OpenOffset, to: OpenOffset, len: u64) -> Result<u64> {
    rig.client.copy_range(&root(), from, to, len).wait().await
}

/// A file that only the server has.
async fn put_by_foreigner(rig: &Rig, name: &str, content: &[u8]) {
    rig.foreigner().await.put(name, content).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_copies_does_not_pass_the_client() {
    let rig = Rig::new(Options::default()).await;
    let content = pattern(1, LONG);
    put_by_foreigner(&rig, "from", &content).await;
    let from = rig.open(&root(), "from", READ).await.unwrap();
    let to = rig.create("to").await;
    to.write(0, &[1; 1000]).await.unwrap();
    rig.server.reset_calls();
    // No more than asked, and no more than there is.
    assert_eq!(copy(&rig, spot(&from, 0), spot(&to, 500), LONG as u64 + 9).await, Ok(LONG as u64));
    let data = ["write", "read"].map(|call| rig.server.calls(call));
    assert_eq!((data, rig.server.calls("copy_range")), ([1, 0], 1), "what was unsent went first");
    assert_eq!(copy(&rig, spot(&from, LONG as u64), spot(&to, 0), 9).await, Ok(0));
    let wanted = [&[1; 500][..], &content].concat();
    assert!(rig.foreigner().await.cat("to").await == wanted);
    assert!(to.read(0, 1 << 20).await.unwrap() == wanted);
    to.close().await.unwrap();
    assert!(rig.cat("to").await == wanted);
    assert_eq!(rig.server.calls("write"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_what_is_held_is_held() {
    let rig = Rig::new(Options::default()).await;
    let content = pattern(2, LONG);
    rig.put("from", &content).await;
    assert!(rig.cat("from").await == content);
    let from = rig.open(&root(), "from", READ).await.unwrap();
    let to = rig.create("to").await;
    rig.server.reset_calls();
    assert_eq!(copy(&rig, spot(&from, 0), spot(&to, 0), LONG as u64).await, Ok(LONG as u64));
    to.close().await.unwrap();
    assert!(rig.cat("to").await == content);
    assert_eq!(["write", "read"].map(|call| rig.server.calls(call)), [0, 0]);
    // The same within one file.
    let file = rig.open(&root(), "to", WRITE).await.unwrap();
    let end = LONG as u64;
    assert_eq!(copy(&rig, spot(&file, 100), spot(&file, end), 300_000).await, Ok(300_000));
    file.close().await.unwrap();
    assert!(rig.cat("to").await == [&content[..], &content[100..300_100]].concat());
    assert_eq!(["write", "read"].map(|call| rig.server.calls(call)), [0, 0]);
    assert!(rig.foreigner().await.cat("to").await == rig.cat("to").await);
}

/// What is cached of the source belongs to an older version than the one that the server copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_another_client_changed_is_not_copied_from_the_cache() {
    let rig = Rig::new(Options::default()).await;
    let (old, new) = (pattern(3, LONG), pattern(4, LONG));
    rig.put("from", &old).await;
    assert!(rig.cat("from").await == old);
    let to = rig.create("to").await;
    let from = rig.open(&root(), "from", READ).await.unwrap();
    put_by_foreigner(&rig, "from", &new).await;
    assert_eq!(copy(&rig, spot(&from, 0), spot(&to, 0), LONG as u64).await, Ok(LONG as u64));
    assert!(to.read(0, 1 << 20).await.unwrap() == new);
    to.close().await.unwrap();
    assert!(rig.cat("to").await == new);
}

/// The kernel reads and writes where that costs less, and where bytes need not be at the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_copied_is_said_before_anything_is_done() {
    let rig = Rig::new(Options::default()).await;
    let content = pattern(5, LONG);
    rig.put("from", &content).await;
    let from = rig.open(&root(), "from", WRITE).await.unwrap();
    let to = rig.create("to").await;
    rig.server.reset_calls();
    let short = copy(&rig, spot(&from, 0), spot(&to, 0), 100_000).await;
    assert_eq!(short, Err(Error::NotSupported), "a READ and a WRITE cost less");
    let end = copy(&rig, spot(&from, LONG as u64 - 9), spot(&to, 0), 1 << 40).await;
    assert_eq!(end, Err(Error::NotSupported));
    from.write(3, b"unsent").await.unwrap();
    let unsent = copy(&rig, spot(&from, 0), spot(&to, 0), LONG as u64).await;
    assert_eq!(unsent, Err(Error::NotSupported), "it is held here");
    let calls = ["copy_range", "write", "getattr"].map(|call| rig.server.calls(call));
    assert_eq!(calls, [0; 3]);
    // Within one file, what is unsent is sent first.
    let within = copy(&rig, spot(&from, 0), spot(&from, LONG as u64), LONG as u64).await;
    assert_eq!(within, Ok(LONG as u64));
    let mut wanted = content.clone();
    wanted[3..9].copy_from_slice(b"unsent");
    assert!(rig.foreigner().await.cat("from").await == [&wanted[..], &wanted].concat());
    assert_eq!(to.read(0, 10).await.unwrap(), b"");
}

/// A copy that fails may have been made in part: nothing that was cached there is trusted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_copy_without_an_answer_the_target_is_what_the_server_has() {
    let rig = Rig::new(Options::default()).await;
    let (source, old) = (pattern(6, LONG), pattern(7, LONG));
    rig.put("from", &source).await;
    rig.put("to", &old).await;
    assert!(rig.cat("to").await == old);
    let from = rig.open(&root(), "from", READ).await.unwrap();
    let to = rig.open(&root(), "to", WRITE).await.unwrap();
    rig.server.set_full(true);
    let refused = copy(&rig, spot(&from, 0), spot(&to, 0), LONG as u64).await;
    assert_eq!(refused, Err(Error::NoSpace));
    rig.server.set_full(false);
    assert!(to.read(0, 1 << 20).await.unwrap() == old);
    rig.server.trouble_after(0, Trouble::Unanswered);
    let lost = copy(&rig, spot(&from, 0), spot(&to, 0), LONG as u64).await;
    assert_eq!(lost, Err(Error::TimedOut));
    let seen = to.read(0, 1 << 20).await.unwrap();
    assert!(seen == source);
    to.close().await.unwrap();
    assert!(rig.cat("to").await == source);
}

/// Random changes of two files that are open here, and now and then by another client: all see the
/// same bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_copies_agree_with_a_model() {
    const END: u64 = 1_000_000;
    let mut copied_by_server = 0;
    for seed in 0..6 {
        let rig = Rig::new(Options::default()).await;
        let mut random = Random(seed);
        let mut models = [pattern(seed, 500_000), pattern(seed + 100, 700_000)];
        for (name, model) in ["a", "b"].iter().zip(&models) {
            rig.put(name, model).await;
        }
        let opens = [
            rig.open(&root(), "a", WRITE).await.unwrap(),
            rig.open(&root(), "b", WRITE).await.unwrap(),
        ];
        for step in 0..40 {
            let (from, to) = (random.below(2) as usize, random.below(2) as usize);
            let (start, at) = (random.below(END), random.below(END));
            // Short ones are not the server's.
            let len = 200_000 + random.below(300_000);
            match random.below(6) {
                0 => {
                    let data = pattern(seed + step, random.below(30_000) as usize + 1);
                    opens[to].write(at, &data).await.unwrap();
                    let end = at as usize + data.len();
                    let size = models[to].len().max(end);
                    models[to].resize(size, 0);
                    models[to][at as usize..end].copy_from_slice(&data);
                }
                1 => opens[to].flush().await.unwrap(),
                2 => {
                    opens[to].truncate(at).await.unwrap();
                    models[to].resize(at as usize, 0);
                }
                _ if from == to && start.abs_diff(at) < len => {}
                _ => {
                    let (source, target) = (spot(&opens[from], start), spot(&opens[to], at));
                    let copied = match copy(&rig, source, target, len).await {
                        Err(Error::NotSupported) => continue,
                        copied => copied.unwrap(),
                    };
                    let there = len.min((models[from].len() as u64).saturating_sub(start));
                    assert_eq!(copied, there, "seed {seed}, step {step}");
                    if there == 0 {
                        continue;
                    }
                    copied_by_server += 1;
                    let part = models[from][start as usize..(start + there) as usize].to_vec();
                    let end = (at + there) as usize;
                    let size = models[to].len().max(end);
                    models[to].resize(size, 0);
                    models[to][at as usize..end].copy_from_slice(&part);
                }
            }
            for (open, model) in opens.iter().zip(&models) {
                let read = open.read(0, 4 << 20).await.unwrap();
                assert!(read == *model, "seed {seed}, step {step}");
            }
        }
        for open in opens {
            open.close().await.unwrap();
        }
        let foreigner = rig.foreigner().await;
        for (name, model) in ["a", "b"].iter().zip(&models) {
            assert!(foreigner.cat(name).await == *model, "seed {seed}");
            assert!(rig.cat(name).await == *model, "seed {seed}");
        }
    }
    println!("{copied_by_server} copies by the server");
    assert!(copied_by_server > 20, "{copied_by_server}");
}

/// The server copies into a file that the kernel writes itself: the kernel sees the copy, even if
/// the source is not cached, and what it writes over the copy is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_in_the_local_file_that_the_kernel_writes() {
    const LEN: usize = 700_000;
    let (server, _dir, client, _cache) = in_real_time().await;
    let (ino, open, _) = create_written(&client, "from", LEN).await;
    client.flush(&root(), ino, open, None).wait().await.unwrap();
    client.release(ino, open).wait().await.unwrap();
    let source = pattern(1, LEN);
    for (name, is_held) in [("held", true), ("fetched", false)] {
        if !is_held {
            // Another client replaces the file by a new one.
            let (other, handle) = another_client_at(&server, "from").await;
            let (anew, who) = (source.clone().into(), root());
            other.write(&who, &handle, None, 0, anew, Stability::FileSync).await.unwrap();
        }
        let from = client.open(&root(), ino, READ).wait().await.unwrap();
        let (target, to, local) = create_written(&client, name, 1000).await;
        server.reset_calls();
        let source_at = OpenOffset { ino, open: from.id, offset: 5 };
        let target_at = OpenOffset { ino: target, open: to, offset: 900 };
        let copied = client.copy_range(&root(), source_at, target_at, 1 << 30).wait().await;
        assert_eq!(copied, Ok(LEN as u64 - 5));
        assert_eq!(server.calls("write"), 1, "what the kernel had written");
        assert_eq!(server.calls("read") == 0, is_held);
        let mut wanted = [&source[..900], &source[5..]].concat();
        let mut seen = vec![0; wanted.len() + 1];
        assert_eq!(rustix::io::pread(local.as_fd(), &mut seen, 0), Ok(wanted.len()));
        assert!(seen[..wanted.len()] == wanted);
        rustix::io::pwrite(local.as_fd(), &[0, 7], 3000).unwrap();
        wanted[3000..3002].copy_from_slice(&[0, 7]);
        client.flush(&root(), target, to, None).wait().await.unwrap();
        client.release(target, to).wait().await.unwrap();
        client.release(ino, from.id).wait().await.unwrap();
        assert_eq!(server.calls("write"), 2, "what it wrote since");
        assert!(content_of(&server, name).await == wanted);
        server.reset_calls();
        let again = client.open(&root(), target, READ).wait().await.unwrap();
        let read = client.read(&root(), target, Some(again.id), 0, 1 << 20).wait().await.unwrap();
        assert!(read == wanted);
        assert_eq!(server.calls("read"), 0, "it is held");
        client.release(target, again.id).wait().await.unwrap();
    }
}
