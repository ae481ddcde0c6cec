//! A mount that is the only writer of names, over crashes of its machine: names and data together.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use larder_io::Image;
use larder_vfs::{FileSystem, Ino, Lookup, Remote};

use crate::kept::generated;
use crate::rig::{Rig, pattern, root};

/// What each name stands for.
type Files = BTreeMap<String, Vec<u8>>;

/// What was there after each step, by how long the disk's log was then. After a close it is kept.
struct Moment {
    logged: usize,
    is_kept: bool,
    files: Files,
}

const NAMES: [&str; 6] = ["n0", "n1", "n2", "n3", "n4", "n5"];

/// What a mount has under these names while its server does not answer.
async fn found(rig: &Rig) -> Files {
    let mut files = Files::new();
    for name in NAMES {
        let answer = rig.client.lookup(&root(), Ino::ROOT, OsStr::new(name)).wait().await;
        if let Ok(Lookup::Found(_)) = answer {
            files.insert(name.to_owned(), rig.cat(name).await);
        }
    }
    files
}

/// Makes, renames and removes files; closes each with its bytes.
async fn history(rig: &Rig) -> Vec<Moment> {
    let (mut files, mut moments) = (Files::new(), Vec::new());
    for step in 0..18_u64 {
        let (from, to) = (NAMES[(step * 5 % 6) as usize], NAMES[((step * 7 + 1) % 6) as usize]);
        match step % 3 {
            0 | 1 if !files.contains_key(from) => {
                let open = rig.create(from).await;
                files.insert(from.to_owned(), Vec::new());
                let (logged, files_then) = (rig.disk.logged(), files.clone());
                moments.push(Moment { logged, is_kept: false, files: files_then });
                let bytes = pattern(step, 3_000 * (step as usize + 1));
                open.write(0, &bytes).await.unwrap();
                open.close().await.unwrap();
                files.insert(from.to_owned(), bytes);
                let (logged, files) = (rig.disk.logged(), files.clone());
                moments.push(Moment { logged, is_kept: true, files });
                continue;
            }
            2 if files.contains_key(from) && from != to => {
                rig.rename(from, to).await.unwrap();
                let bytes = files.remove(from).unwrap();
                files.insert(to.to_owned(), bytes);
            }
            _ if files.contains_key(to) => {
                rig.remove(to).await.unwrap();
                files.remove(to);
            }
            _ => continue,
        }
        let (logged, files) = (rig.disk.logged(), files.clone());
        moments.push(Moment { logged, is_kept: false, files });
    }
    moments
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_the_machine_crashes_closed_files_have_their_names_and_bytes() {
    let rig = Rig::exclusive(generated()).await;
    // The server tells whom it takes root for.
    rig.put("first", b"").await;
    rig.checkpoint();
    let (begin, calls) = (rig.disk.logged(), rig.server.calls("make"));
    let mut moments = vec![Moment { logged: begin, is_kept: true, files: Files::new() }];
    moments.extend(history(&rig).await);
    assert_eq!(rig.server.calls("make"), calls, "all of it is made here");
    let mut images = 0;
    for point in rig.disk.crash_points().filter(|point| point.logged() >= begin) {
        let at = point.logged();
        let first = moments.iter().rposition(|moment| moment.is_kept && moment.logged <= at);
        let last = moments.iter().position(|moment| moment.logged > at);
        let range = first.unwrap()..=last.unwrap_or(moments.len() - 1);
        for image in [Image::Synced, Image::Torn(at as u64)] {
            let server = rig.server.another_client();
            server.time_out();
            let next = rig.boot(point.image(image), server).await;
            let files = found(&next).await;
            let is_one = moments[range.clone()].iter().any(|moment| moment.files == files);
            let sizes = |files: &Files| -> Vec<_> {
                files.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect()
            };
            let allowed: Vec<_> =
                moments[range.clone()].iter().map(|moment| sizes(&moment.files)).collect();
            assert!(is_one, "{at} {image:?}: {:?} is none of {allowed:#?}", sizes(&files));
            images += 1;
        }
    }
    println!("{images} crashes");
    assert!(images > 50);
    // The last of them goes to the server, names and bytes.
    let files = found(&rig).await;
    let rig = rig.crash().await;
    rig.client.sync(&|_| true).await.unwrap();
    let top = rig.server.root().await.unwrap().handle;
    for (name, bytes) in files {
        let there = rig.server.lookup(&root(), &top, name.as_ref()).await.unwrap().found.unwrap();
        let read = rig.server.read(&root(), &there.handle, None, 0, 1 << 20).await.unwrap();
        assert!(read.data[..] == bytes[..], "{name}");
    }
    assert_eq!((rig.client.unsaved(), rig.set_aside().len()), (vec![], 0));
}
