//! In which order new objects are made at the server.

use std::collections::BTreeSet;

use larder_vfs::{Stability, Trouble};

use super::*;

impl Rig {
    /// The paths at the server.
    async fn there(&self) -> BTreeSet<String> {
        tree(&*self.server).await.into_keys().collect()
    }
}

/// A directory whose turn is long holds up nothing but what is in it.
#[tokio::test]
async fn a_directory_waits_for_the_ones_above_it_alone() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    rig.made(&top, "long", New::Directory).await.unwrap();
    rig.deferring().replay(None).await.unwrap();
    let there = rig.server.lookup(&user(), &top, "long".as_ref()).await.unwrap().found.unwrap();
    let long = rig.find(&top, "long").await.unwrap().handle;
    rig.made(&long, "next", New::Directory).await.unwrap();
    let (mut dir, mut path) = (top, String::new());
    for depth in 0..20 {
        let name = depth.to_string();
        dir = rig.made(&dir, &name, New::Directory).await.unwrap().handle;
        path = format!("{path}/{name}");
    }
    rig.server.hold_changes_of(Some(there.handle));
    rig.server.reset_calls();
    let held = rig.names.clone();
    let replaying =
        tokio::spawn(async move { held.deferring().expect("it defers").replay(None).await });
    for _ in 0..100_000 {
        if rig.there().await.contains(&path) {
            break;
        }
        tokio::task::yield_now().await;
    }
    let there = rig.there().await;
    assert!(there.contains(&path) && !there.contains("/long/next"), "{there:?}");
    rig.server.hold_changes_of(None);
    replaying.await.unwrap().unwrap();
    assert!(rig.there().await.contains("/long/next"));
    assert_eq!(rig.server.calls("make"), 21, "each was asked for once");
}

/// Wherever the server falls silent, it has of each directory the first names that were made in it.
#[tokio::test]
async fn each_directory_is_made_in_its_order() {
    const NAMES: usize = 7;
    for answered in 1.. {
        let rig = Rig::new().await;
        let top = rig.top().await;
        let mut dirs = Vec::new();
        for name in ["a", "b", "c"] {
            dirs.push((name, rig.made(&top, name, New::Directory).await.unwrap().handle));
        }
        // Not in the order of the alphabet.
        for at in 0..NAMES {
            for (_, dir) in &dirs {
                rig.made(dir, &format!("{}", (at * 3) % NAMES), New::Directory).await.unwrap();
            }
        }
        rig.server.trouble_after(answered, Trouble::Unanswered);
        let _ = rig.deferring().replay(None).await;
        if rig.server.is_trouble_to_come() {
            println!("silence after each of {} calls", answered - 1);
            return;
        }
        let there = rig.there().await;
        for (dir, _) in dirs {
            let has = |at: usize| there.contains(&format!("/{dir}/{}", (at * 3) % NAMES));
            let count = (0..NAMES).filter(|at| has(*at)).count();
            assert!((0..count).all(has), "{answered}: {there:?}");
        }
        rig.deferring().replay(None).await.unwrap();
        assert_eq!(rig.there().await.len(), 3 * (NAMES + 1), "{answered}");
    }
}

/// Who sends bytes to a file that the server lacks, and everything is due, finds the earlier ones
/// of each directory made before it, wherever the server falls silent.
#[tokio::test]
async fn bytes_of_a_file_that_is_due_come_after_the_earlier_files_of_its_directory() {
    const NAMES: usize = 7;
    const WRITTEN: usize = 5;
    for answered in 1.. {
        let rig = Rig::new().await;
        let top = rig.top().await;
        let mut files = Vec::new();
        for name in (0..NAMES).map(|at| format!("{}", (at * 3) % NAMES)) {
            let file = rig.made(&top, &name, New::File).await.unwrap().handle;
            files.push((format!("/{name}"), file));
        }
        let write = async |at: usize| {
            let (user, file): (_, &Handle) = (user(), &files[at].1);
            rig.remote().write(&user, file, None, 0, "text".into(), Stability::FileSync).await
        };
        let replaying = rig.deferring().replay(None);
        rig.server.trouble_after(answered, Trouble::Unanswered);
        let written = write(WRITTEN).await;
        let is_over = rig.server.is_trouble_to_come();
        rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
        let there = rig.there().await;
        let has = |at: usize| there.contains(&files[at].0);
        let count = (0..NAMES).filter(|at| has(*at)).count();
        assert!((0..count).all(has), "{answered}: {there:?}");
        if is_over {
            written.unwrap();
            assert!(has(WRITTEN));
            replaying.await.unwrap();
            println!("silence after each of {} calls", answered - 1);
            return;
        }
    }
}

#[tokio::test]
async fn bytes_of_a_file_that_is_not_due_cost_no_call_for_others() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    rig.made(&top, "earlier", New::File).await.unwrap();
    let file = rig.made(&top, "file", New::File).await.unwrap().handle;
    let text = "text".into();
    rig.remote().write(&user(), &file, None, 0, text, Stability::FileSync).await.unwrap();
    assert_eq!(rig.there().await, ["/file".to_owned()].into());
}
