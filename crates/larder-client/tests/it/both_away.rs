//! Two machines change one file while their server is out of reach, and come back to it one after
//! the other, over lost answers and deaths: the server has both versions, byte for byte, one under
//! the name and one beside it.

use std::ops::Range;

use larder_client::{Options, Start};
use larder_io::Image;
use larder_vfs::{Error, Remote, SetAttr, Trouble};

use crate::kept::{at_server, beside, generated};
use crate::rig::{PATIENCE, Rig, WRITE, pattern, root};

/// What both machines do with the file.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Each empties it, and writes another length.
    Anew,
    /// Each changes the same part of it.
    InPart,
}

/// The part that both change.
const PART: Range<usize> = 20_000..25_000;

impl Work {
    /// What a machine has then.
    fn of(self, machine: u64) -> Vec<u8> {
        match self {
            Work::Anew => pattern(machine, 7000 * usize::try_from(machine).unwrap()),
            Work::InPart => {
                let mut bytes = pattern(1, 50_000);
                bytes[PART].copy_from_slice(&pattern(machine, PART.len()));
                bytes
            }
        }
    }

    async fn is_done(self, rig: &Rig, machine: u64) {
        let (open, bytes) = (rig.open(&root(), "file", WRITE).await.unwrap(), self.of(machine));
        match self {
            Work::Anew => {
                open.truncate(0).await.unwrap();
                open.write(0, &bytes).await.unwrap();
            }
            Work::InPart => open.write(PART.start as u64, &bytes[PART]).await.unwrap(),
        }
        open.close().await.unwrap();
    }
}

/// How the next process goes on.
const STARTS: [Start; 2] = [Start::Resume, Start::NewMount];

/// Two machines that have `file`, and are without their server.
async fn away_from_here() -> [Rig; 2] {
    away_with(generated()).await
}

async fn away_with(options: Options) -> [Rig; 2] {
    let one = Rig::offline(options).await;
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
    machines
}

/// Two machines that have written `file`; the server is back, and has heard of neither.
async fn both_wrote(work: Work) -> [Rig; 2] {
    let machines = away_from_here().await;
    for (rig, machine) in machines.iter().zip(2..) {
        work.is_done(rig, machine).await;
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

async fn both_are_there(machines: &[Rig; 2], work: Work, case: &str) {
    let third = machines[0].foreigner().await;
    let names = third.names().await;
    let [wanted, beside] = &names[..] else {
        let len = at_server(&third, "file").await.len();
        let left = machines.each_ref().map(|rig| (rig.set_aside().len(), rig.client.unsaved()));
        panic!("{case}: {names:?}, the first has {len} bytes, left: {left:?}")
    };
    assert!(wanted == "file" && beside.starts_with("file.conflict-here-"), "{case}: {names:?}");
    let mut found = [at_server(&third, wanted).await, at_server(&third, beside).await];
    let mut wrote = [work.of(2), work.of(3)];
    found.sort();
    wrote.sort();
    let is_one = found.each_ref().map(|found| wrote.iter().position(|wrote| wrote == found));
    assert!(found == wrote, "{case}: {is_one:?}");
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
async fn both_are_there_wherever_they_are_interrupted(work: Work) {
    let troubles = [Trouble::Unanswered, Trouble::Refused(Error::TimedOut)];
    let starts = [None, Some(Start::Resume), Some(Start::NewMount)];
    let mut cases = 0;
    for (trouble, start) in troubles.iter().flat_map(|one| starts.map(|start| (*one, start))) {
        for count in 0.. {
            let mut is_over = false;
            for second in 0..6 {
                let [one, other] = both_wrote(work).await;
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
                let case = format!("{work:?} {trouble:?} {start:?} {count} {second}");
                both_are_there(&machines, work, &case).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_machines_wrote_away_is_there_twice_wherever_they_are_interrupted() {
    both_are_there_wherever_they_are_interrupted(Work::Anew).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_machines_changed_in_part_is_there_twice_wherever_they_are_interrupted() {
    both_are_there_wherever_they_are_interrupted(Work::InPart).await;
}

/// Which calls of a machine wait, and where.
#[derive(Clone, Copy, Debug)]
enum Hold {
    /// On their way to the server.
    Calls(&'static str),
    /// On their way back.
    Answers(&'static str),
}

impl Hold {
    const ALL: [Hold; 8] = [
        Hold::Calls("getattr"),
        Hold::Answers("getattr"),
        Hold::Calls("setattr"),
        Hold::Answers("setattr"),
        Hold::Calls("write"),
        Hold::Answers("write"),
        Hold::Calls("commit"),
        Hold::Answers("commit"),
    ];

    fn method(self) -> &'static str {
        let (Hold::Calls(method) | Hold::Answers(method)) = self;
        method
    }

    /// Calls of a machine wait so from now on. The future ends when one does.
    async fn begins(self, rig: &Rig) {
        let method = self.method();
        match self {
            Hold::Calls(_) => rig.server.hold(Some(method)),
            Hold::Answers(_) => rig.server.hold_answers(Some(method)),
        }
        let before = rig.server.calls(method);
        while rig.server.calls(method) == before {
            tokio::task::yield_now().await;
        }
    }
}

/// A machine is on its way until a call waits, and the other one does everything. Then it goes on.
async fn goes_on_after(one: &Rig, other: &Rig, hold: Hold) {
    let mut trying = std::pin::pin!(tried(one));
    let is_over = tokio::select! {
        biased;
        () = hold.begins(one) => false,
        _ = &mut trying => true,
    };
    brought(other).await;
    one.server.hold(None);
    one.server.hold_answers(None);
    if !is_over {
        trying.await;
    }
}

/// A machine is on its way until a call waits, and none of its calls is carried out after that.
async fn comes_to(rig: &Rig, hold: Hold) {
    let comes = async {
        hold.begins(rig).await;
        rig.server.cut_off();
    };
    tokio::select! {
        biased;
        () = comes => {}
        _ = tried(rig) => {}
    }
}

/// The second machine does everything while the first one waits for the server at any call, which
/// is carried out before that or after; then that one goes on, or the next process in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_machines_wrote_away_is_there_twice_if_one_comes_between_calls_of_the_other() {
    let starts = [None, Some(STARTS[0]), Some(STARTS[1])];
    for work in [Work::Anew, Work::InPart] {
        for (hold, start) in Hold::ALL.iter().flat_map(|hold| starts.map(|start| (*hold, start))) {
            let [mut one, other] = both_wrote(work).await;
            match start {
                None => Box::pin(goes_on_after(&one, &other, hold)).await,
                Some(start) => {
                    comes_to(&one, hold).await;
                    one = one.kill(start).await;
                    brought(&other).await;
                }
            }
            brought(&one).await;
            both_are_there(&[one, other], work, &format!("{work:?} {hold:?} {start:?}")).await;
        }
    }
}

/// Another client changes the part, with the server.
async fn other_writes(rig: &Rig) {
    let client = rig.foreigner().await;
    let open = client.open(&root(), "file", WRITE).await.unwrap();
    open.write(22_000, &pattern(9, 10)).await.unwrap();
    open.close().await.unwrap();
}

/// What that client wrote is there, and beside it what the machine wrote.
async fn both_were_kept(rig: &Rig, case: &str) {
    let first = pattern(1, 50_000);
    let theirs = [&first[..22_000], &pattern(9, 10), &first[22_010..]].concat();
    assert!(at_server(rig, "file").await == theirs, "{case}: it was overwritten");
    assert!(beside(rig, "file").await == [Work::InPart.of(2)], "{case}");
}

/// A machine that has changed a file, and perhaps its mode, without the server waits at any call;
/// another client writes to the file, with the server, and the machine's process dies. Unless a
/// request with the machine's bytes was on its way, both are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_writes_before_the_bytes_of_a_machine_go_stays() {
    for (start, is_set) in STARTS.iter().flat_map(|start| [(*start, false), (*start, true)]) {
        let before_bytes = Hold::ALL.into_iter().take_while(|hold| hold.method() != "write");
        for hold in before_bytes {
            let [one, _other] = away_from_here().await;
            if is_set {
                one.set("file", SetAttr { mode: Some(0o640), ..SetAttr::default() }).await;
            }
            Work::InPart.is_done(&one, 2).await;
            one.server.reconnect();
            comes_to(&one, hold).await;
            other_writes(&one).await;
            let one = one.kill(start).await;
            brought(&one).await;
            both_were_kept(&one, &format!("{start:?} {is_set} {hold:?}")).await;
        }
    }
}

/// Kind of the journal's records of requests without an answer (`docs/formats/names.md`).
const WRITE_ON_ITS_WAY: u8 = 19;

/// The same wherever the process dies on its way to the first request with bytes: also when it has
/// on record that they are being sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_writes_stays_if_a_process_dies_before_the_bytes_go() {
    for number in 0.. {
        // Before several requests, that is on record by itself.
        let write_bytes_max = u32::try_from(PART.len() / 2).unwrap();
        let [one, _other] = away_with(Options { write_bytes_max, ..generated() }).await;
        Work::InPart.is_done(&one, 2).await;
        let first = one.disk.logged();
        one.server.reconnect();
        comes_to(&one, Hold::Calls("write")).await;
        let mut points = one.disk.crash_points().filter(|point| point.logged() >= first);
        let point = points.nth(number).expect("the request is on record at some point");
        other_writes(&one).await;
        one.server.shutdown();
        let server = one.server.another_client();
        server.time_out();
        let next = one.on_image(point.image(Image::Written), server, Start::Resume).await;
        if next.cache().names().iter().any(|(_, record)| record.first() == Some(&WRITE_ON_ITS_WAY))
        {
            assert!(number >= 3, "{number}");
            break;
        }
        next.server.reconnect();
        brought(&next).await;
        both_were_kept(&next, &format!("killed at {number}")).await;
    }
}

/// What a file that is changed in part costs: one call more if that was done without the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_changed_without_the_server_costs_one_call_more() {
    let calls = async |is_away: bool| {
        let [rig, _other] = away_from_here().await;
        if !is_away {
            rig.server.reconnect();
            rig.cat("file").await;
        }
        Work::InPart.is_done(&rig, 2).await;
        rig.server.reconnect();
        rig.server.reset_calls();
        brought(&rig).await;
        assert!(at_server(&rig, "file").await == Work::InPart.of(2));
        ["setattr", "write", "commit"].map(|method| rig.server.calls(method))
    };
    assert_eq!(calls(false).await, [1, 1, 0]);
    assert_eq!(calls(true).await, [2, 1, 0]);
}
