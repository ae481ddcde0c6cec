//! Two machines change one file while their server is out of reach, and come back to it one after
//! the other, over lost answers and deaths: the server has both versions, byte for byte, one under
//! the name and one beside it.

use larder_client::Start;
use larder_vfs::{Error, Trouble};

use crate::kept::{at_server, generated};
use crate::rig::{PATIENCE, Rig, WRITE, pattern, root};

/// What a machine writes: another length for each.
fn anew(machine: u64) -> Vec<u8> {
    pattern(machine, 7000 * usize::try_from(machine).unwrap())
}

/// Two machines that have written `file` anew; the server is back, and has heard of neither.
async fn both_wrote() -> [Rig; 2] {
    let one = Rig::offline(generated()).await;
    one.put("file", &pattern(1, 50_000)).await;
    one.client.sync(&|_| true).await.unwrap();
    let other = one.beside().await;
    let machines = [one, other];
    for rig in &machines {
        assert_eq!(rig.cat("file").await.len(), 50_000);
        rig.names().await;
        rig.landed("file").await;
        rig.server.time_out();
    }
    for (rig, machine) in machines.iter().zip(2..) {
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.truncate(0).await.unwrap();
        open.write(0, &anew(machine)).await.unwrap();
        open.close().await.unwrap();
    }
    machines.iter().for_each(|rig| rig.server.reconnect());
    machines
}

/// One attempt to bring all to the server.
async fn tried(rig: &Rig) -> bool {
    match rig.in_vain(rig.client.sync(&|_| true)).await {
        Ok(()) => true,
        Err(Error::Changed | Error::TimedOut | Error::TryAgain) => false,
        Err(error) => panic!("{error}"),
    }
}

async fn brought(rig: &Rig) {
    let bringing = async { while !tried(rig).await {} };
    tokio::time::timeout(PATIENCE, bringing).await.expect("it ends");
}

async fn dies(rig: Rig, start: Option<Start>) -> Rig {
    match start {
        Some(start) => rig.kill(start).await,
        None => rig,
    }
}

async fn both_are_there(machines: &[Rig; 2], case: &str) {
    let third = machines[0].foreigner().await;
    let names = third.names().await;
    let [wanted, beside] = &names[..] else {
        let len = at_server(&third, "file").await.len();
        let left = machines.each_ref().map(|rig| (rig.set_aside().len(), rig.client.unsaved()));
        panic!("{case}: {names:?}, the first has {len} bytes, left: {left:?}")
    };
    assert!(wanted == "file" && beside.starts_with("file.conflict-here-"), "{case}: {names:?}");
    let mut found = [at_server(&third, wanted).await, at_server(&third, beside).await];
    found.sort_by_key(Vec::len);
    let lens = found.each_ref().map(Vec::len);
    assert!(found == [anew(2), anew(3)], "{case}: {lens:?}");
    for rig in machines {
        assert!(rig.set_aside().is_empty() && rig.client.unsaved().is_empty(), "{case}");
    }
}

/// A machine is on its way until the request after `count` others, with which something goes wrong.
/// Returns whether it makes so many.
async fn is_stopped(rig: &Rig, count: u64, trouble: Trouble) -> bool {
    rig.server.trouble_after(count, trouble);
    tried(rig).await;
    !rig.server.is_trouble_to_come()
}

/// At each request of the first machine the answer is lost or the request is, and the process dies
/// or does not; then the second machine comes, all at once or interrupted itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_machines_wrote_away_is_there_twice_wherever_they_are_interrupted() {
    let troubles = [Trouble::Unanswered, Trouble::Refused(Error::TimedOut)];
    let starts = [None, Some(Start::Resume), Some(Start::NewMount)];
    let mut cases = 0;
    for (trouble, start) in troubles.iter().flat_map(|one| starts.map(|start| (*one, start))) {
        for count in 0.. {
            let mut is_over = false;
            for second in 0..6 {
                let [one, other] = both_wrote().await;
                is_over = !is_stopped(&one, count, trouble).await;
                let one = dies(one, start).await;
                let other = match second {
                    0 => other,
                    _ => {
                        is_stopped(&other, second, Trouble::Unanswered).await;
                        dies(other, Some(Start::Resume)).await
                    }
                };
                // Whoever was interrupted first goes on first, or last.
                let machines = [one, other];
                for at in [(count + second) % 2, (count + second + 1) % 2] {
                    brought(&machines[usize::try_from(at).unwrap()]).await;
                }
                both_are_there(&machines, &format!("{trouble:?} {start:?} {count} {second}")).await;
                cases += 1;
            }
            if is_over {
                assert!(count >= 4, "{count}");
                break;
            }
        }
    }
    println!("{cases} cases");
}
