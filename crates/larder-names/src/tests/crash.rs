//! The machine crashes at every write and every sync of random histories: what was kept is there,
//! in the order in which it was done, and nothing that was not done.

use larder_io::many_histories;

use super::model::{History, check_names};
use super::*;

/// The objects after each change, how long the disk's log was then, and whether the change was
/// kept.
struct Moment {
    logged: usize,
    is_kept: bool,
    tree: Tree,
}

/// What was found after crashes.
#[derive(Default)]
struct Seen {
    histories: u64,
    acknowledged: u64,
    images: u64,
    /// Of these, after something was kept, and before the last time.
    kept: u64,
    rolled_back: u64,
    lost: u64,
    invented: u64,
}

impl Seen {
    /// A history of so many steps. The machine crashes at every write and every sync, and each
    /// crash leaves three images; or at a few of them, and each leaves one. `seed` is what
    /// `LARDER_SEED` must be for a history of this test to begin like this one.
    async fn see(&mut self, (seed, number): (u64, u64), steps: usize, few: Option<usize>) {
        let rig = Rig::on(SimDisk::recording()).await;
        let mut history = History::new(number);
        let moments = self.live(&rig, &mut history, steps).await;
        let begin = if few.is_some() { moments[0].logged } else { 0 };
        for point in rig.disk.crash_points_from(begin, few, number) {
            let at = point.logged();
            let all = [Image::Synced, Image::Written, Image::Torn(at as u64)];
            let one = (number as usize ^ at) % 3;
            for image in if few.is_some() { &all[one..=one] } else { &all[..] } {
                let disk = point.image(*image);
                let (clock, boot) = (Arc::new(SimClock::new()), 2);
                let Some(cache) = try_open(&disk, &clock, boot) else { continue };
                let server = Arc::new(rig.server.another_client());
                let found = names(&server, &cache, &clock);
                let found = tree(found.deferring().unwrap().names()).await;
                self.check(&moments, at, &found, &format!("LARDER_SEED={seed}: {at} {image:?}"));
            }
        }
        if few.is_none() {
            check_names(&rig).await;
        }
        self.histories += 1;
    }

    /// Makes the changes of a history.
    async fn live(&mut self, rig: &Rig, history: &mut History, steps: usize) -> Vec<Moment> {
        let moment = async |is_kept| Moment {
            logged: rig.disk.logged(),
            is_kept,
            tree: tree(rig.remote()).await,
        };
        let mut moments = vec![moment(false).await];
        for _ in 0..steps {
            if history.random.below(4) == 0 {
                rig.deferring().keep().await.unwrap();
                self.acknowledged += 1;
                moments.push(moment(true).await);
            } else {
                self.acknowledged += u64::from(history.step(rig).await.is_none());
                moments.push(moment(false).await);
            }
        }
        assert_eq!(rig.server.calls("make"), 0, "all of it is made here");
        moments
    }

    /// What is there is what was kept last before the crash, or what came after that.
    fn check(&mut self, moments: &[Moment], at: usize, found: &Tree, what: &str) {
        let last_kept = moments.iter().rposition(|moment| moment.is_kept).unwrap_or(0);
        // The last one that was kept before, and all that were done since or were being recorded.
        let first = moments.iter().rposition(|moment| moment.is_kept && moment.logged <= at);
        let last = moments.iter().position(|moment| moment.logged > at);
        let range = first.unwrap_or(0)..=last.unwrap_or(moments.len() - 1);
        let is_found = |moments: &[Moment]| moments.iter().any(|one| one.tree == *found);
        if !is_found(&moments[range.clone()]) {
            println!("{what}: {found:#?}");
            // Either it is an earlier state, or it never was.
            let is_earlier = is_found(&moments[..*range.start()]);
            *(if is_earlier { &mut self.lost } else { &mut self.invented }) += 1;
        }
        self.images += 1;
        self.kept += u64::from(first.is_some());
        self.rolled_back += u64::from(*range.start() < last_kept);
    }

    fn tell(&self) {
        let Seen { histories, acknowledged, images, kept, rolled_back, lost, invented } = self;
        println!(
            "{histories} histories of {acknowledged} acknowledged operations, {images} images, \
             {kept} after something was kept, {rolled_back} before the last: {lost} lost, \
             {invented} invented"
        );
        assert_eq!((*lost, *invented), (0, 0));
        assert!(*kept > 0);
    }
}

/// The number of the first history of a seed.
fn first_of(seed: u64) -> u64 {
    seed.wrapping_mul(1_000_003)
}

#[tokio::test]
async fn a_crash_at_every_write_and_sync_leaves_what_was_kept() {
    let (seed, rounds) = seed("a_crash_at_every_write_and_sync", 2);
    let mut seen = Seen::default();
    for round in 0..rounds {
        seen.see((seed, first_of(seed) + round), 24, None).await;
    }
    seen.tell();
}

/// The same over many histories, each with a few crashes. With the seed of one that fails, the test
/// above begins with the same steps, and crashes after each.
#[tokio::test]
async fn a_crash_in_each_of_many_histories_leaves_what_was_kept() {
    const STEPS: usize = 12;
    const CRASHES: usize = 2;
    const HISTORIES: u64 = 1000;
    let mut seen = Seen::default();
    let (first, _) = seed("a_crash_in_each_of_many_histories", HISTORIES);
    for seed in first..first + many_histories(HISTORIES) {
        seen.see((seed, first_of(seed)), STEPS, Some(CRASHES)).await;
    }
    seen.tell();
}

/// A disk that does not even contain an empty cache.
fn try_open(disk: &SimDisk, clock: &Arc<SimClock>, boot: u128) -> Option<Cache> {
    use larder_io::Disk;
    let is_there = disk.open("larder-cache", larder_io::OpenMode::Existing).is_ok();
    is_there.then(|| open(disk, clock, boot))
}
