//! Histories of clients that make names on their machines first, under leases of their directories
//! (`-o exclusive` on a volume), under kills of clients, disks and the metadata server.
//!
//! While a holder lives its names are linearizable as everybody's are. What it had acknowledged
//! when it died, or when the metadata server started anew, is at the server later, and others may
//! look before. So before a kill the processes of all clients but one pause between two steps, and
//! go on when everybody's names are at the server. The one client's processes go on: if it is the
//! one that is killed, in the middle of their calls. Of a game in which a client that lives lost
//! its session, or returned a lease before all was at the server, as on a busy machine, no names
//! are judged: others may have looked then, too. A client that is left with a name that no server
//! takes fails the game.
//!
//! In every other game the class is one that needs no disk before a file is at the server.
//! Of clients only processes are killed, since a crash of their machine may undo what was not
//! synced. In every other history processes call as clients of an export do, without the locks of a
//! kernel.

use std::sync::Arc;
use std::time::Instant;

use larder_io::Image;
use larder_testkit::history::names::{self, Call};
use tokio::task::{JoinSet, block_in_place};

use crate::histories::{CLIENTS, Counts, PLAYERS, drawn, faults, number};
use crate::player::{History, Player, Random};
use crate::world::World;

/// The number of histories, unless `LARDER_HISTORIES` sets another.
const HISTORIES: u64 = 100;
/// This many of them run at once, on one volume.
const AT_ONCE: u64 = 50;

const STEPS: u64 = 10;
const KILLS: u64 = 6;

/// Kills a client or servers, which start again, while the processes of all clients but one pause.
async fn kill(
    world: &mut World,
    histories: &[Arc<History>],
    random: &mut Random,
    counts: &mut Counts,
) {
    let busy = usize::try_from(random.below(CLIENTS as u64)).unwrap();
    let mut floors = Vec::new();
    for client in (0..CLIENTS).filter(|client| *client != busy) {
        floors.push(world.floor(client).write_owned().await);
    }
    let victim = random.below(5);
    if victim < 2 {
        block_in_place(|| {
            let life = world.kill_client(busy, Image::Written);
            histories.iter().for_each(|history| history.died(life));
            world.begin(busy);
        });
        counts.kills[0] += 1;
    } else {
        // The busy client may look before the others have made their names at the new server.
        for client in (0..CLIENTS).filter(|client| *client != busy) {
            world.is_sent(client).await;
        }
        let image = [Image::Written, Image::Synced][random.below(2) as usize];
        block_in_place(|| {
            if victim != 3 {
                world.volume.kill_meta(image);
                assert_eq!(world.volume.check(), Vec::<String>::new());
            }
            if victim != 2 {
                world.volume.kill_disks(image);
            }
            world.volume.start();
        });
        // Until it knows that the server has started anew, a client answers by leases from before.
        for client in 0..CLIENTS {
            world.resumes(client).await;
        }
        counts.kills[1] += u64::from(victim != 3);
        counts.kills[2] += u64::from(victim != 2);
    }
    for client in 0..CLIENTS {
        world.is_sent(client).await;
    }
}

/// What came of a game.
#[derive(Debug, Default)]
struct Played {
    /// Objects that were made on a client's machine.
    made_here: usize,
    /// Histories whose names were judged.
    judged: u64,
    wrong: Vec<String>,
}

/// Plays this many histories at once.
fn game(seed: u64, count: u64, counts: &mut Counts) -> Played {
    let mut random = Random(seed);
    let class = ["volatile", "generated"][usize::from(seed % 2 == 1)];
    let mut world = World::exclusive(CLIENTS, class);
    let ticks = world.ticks.clone();
    let maker = world.add();
    let maker = world.lives(maker).borrow().clone().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).build().unwrap();
    let begin = |at: u64| {
        let is_of_export = !at.is_multiple_of(2);
        runtime.block_on(History::begin(at, (false, is_of_export), ticks.clone(), &maker))
    };
    let histories: Vec<Arc<History>> = (0..count).map(begin).collect();
    runtime.block_on(world.all_is_sent());
    let mut players = JoinSet::new();
    for (history, drawn) in histories.iter().zip(drawn(&mut random, count, None)) {
        for (number, (client, seed)) in (1..).zip(drawn) {
            let player = Player::new(Arc::clone(history), number, world.lives(client), seed);
            let player = player.of_names(world.floor(client));
            players.spawn_on(player.play(STEPS), runtime.handle());
        }
    }
    counts.histories += count;
    let all = count * PLAYERS as u64 * STEPS;
    let mut moments: Vec<u64> = (0..KILLS).map(|_| random.below(all * 2)).collect();
    moments.sort_unstable();
    let begun = ticks.next();
    runtime.block_on(async {
        let mut all_over = std::pin::pin!(players.join_all());
        for moment in moments {
            tokio::select! {
                () = ticks.reach(begun + moment) => {}
                _ = &mut all_over => return,
            }
            kill(&mut world, &histories, &mut random, counts).await;
        }
        all_over.await;
    });
    runtime.block_on(world.all_is_sent());
    world.volume.kill_meta(Image::Synced);
    world.volume.kill_disks(Image::Synced);
    assert_eq!(world.volume.check(), Vec::<String>::new());
    world.volume.start();
    let new = world.add();
    let lapses = world.lapses().values().sum::<u64>() + world.late_returns();
    counts.lapses += lapses;
    let mut played = Played::default();
    for history in &histories {
        for client in [new, 0] {
            let mut player = Player::new(Arc::clone(history), 9, world.lives(client), 1);
            runtime.block_on(player.look_at_names());
        }
        let made = history.record.lock().unwrap();
        played.made_here += made.names.iter().filter(|one| is_made_here(&one.call)).count();
        counts.add_record(&made);
        drop(made);
        if !world.may_be_early() {
            let faults = faults(history, &[]);
            let faults =
                faults.iter().map(|fault| format!("seed {seed}, {}: {fault}", history.dir));
            played.wrong.extend(faults);
            played.judged += 1;
        }
    }
    played
}

fn is_made_here(call: &Call) -> bool {
    matches!(call, Call::Make { answer: Ok(node), .. } if names::is_made_here(*node))
}

/// `LARDER_HISTORIES` and `LARDER_SEED` run more of them.
#[test]
fn histories_of_exclusive_clients_under_kills_are_explained() {
    let (wanted, seed) =
        (number("LARDER_HISTORIES").unwrap_or(HISTORIES), number("LARDER_SEED").unwrap_or(1));
    let begin = Instant::now();
    let (mut counts, mut all) = (Counts::default(), Played::default());
    for at in 0..wanted.div_ceil(AT_ONCE) {
        let played = game(seed + at, AT_ONCE.min(wanted - at * AT_ONCE), &mut counts);
        all.made_here += played.made_here;
        all.judged += played.judged;
        all.wrong.extend(played.wrong);
    }
    let Played { made_here, judged, wrong } = all;
    println!(
        "{counts:?}, {made_here} objects made here, {judged} judged, in {:?}",
        begin.elapsed()
    );
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
    assert!(made_here > 0, "no client made an object on its machine");
}
