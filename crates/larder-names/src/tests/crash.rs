//! The machine crashes at every write and every sync of random histories: what was kept is there,
//! in the order in which it was done, and nothing that was not done.

use super::model::{History, check_names};
use super::*;

/// The objects after each change, how long the disk's log was then, and whether the change was
/// kept.
struct Moment {
    logged: usize,
    is_kept: bool,
    tree: Tree,
}

#[tokio::test]
async fn a_crash_at_every_write_and_sync_leaves_what_was_kept() {
    let (seed, rounds) = seed("a_crash_at_every_write_and_sync", 2);
    let (mut acknowledged, mut lost, mut invented) = (0, 0, 0);
    let (mut images, mut kept_images, mut rolled_back) = (0, 0, 0);
    for round in 0..rounds {
        let rig = Rig::on(SimDisk::recording()).await;
        let mut history = History::new(seed.wrapping_mul(1_000_003) + round);
        let moment = async |is_kept| Moment {
            logged: rig.disk.logged(),
            is_kept,
            tree: tree(rig.remote()).await,
        };
        let mut moments = vec![moment(false).await];
        for _ in 0..24 {
            if history.random.below(4) == 0 {
                rig.deferring().keep().await.unwrap();
                acknowledged += 1;
                moments.push(moment(true).await);
            } else {
                acknowledged += u64::from(history.step(&rig).await.is_none());
                moments.push(moment(false).await);
            }
        }
        assert_eq!(rig.server.calls("make"), 0, "all of it is made here");
        let last_kept = moments.iter().rposition(|moment| moment.is_kept).unwrap_or(0);
        for point in rig.disk.crash_points() {
            let at = point.logged();
            // The last one that was kept before, and all that were done since or were being
            // recorded.
            let first = moments.iter().rposition(|moment| moment.is_kept && moment.logged <= at);
            let last = moments.iter().position(|moment| moment.logged > at);
            let range = first.unwrap_or(0)..=last.unwrap_or(moments.len() - 1);
            for image in [Image::Synced, Image::Written, Image::Torn(at as u64)] {
                let disk = point.image(image);
                let (clock, boot) = (Arc::new(SimClock::new()), 2);
                let Some(cache) = try_open(&disk, &clock, boot) else { continue };
                let server = Arc::new(rig.server.another_client());
                let found = names(&server, &cache, &clock);
                let found = tree(found.deferring().unwrap().names()).await;
                let is_found = |moments: &[Moment]| moments.iter().any(|one| one.tree == found);
                if !is_found(&moments[range.clone()]) {
                    println!("{round}: {at} {image:?}: {found:#?}");
                    // Either it is an earlier state, or it never was.
                    let is_earlier = is_found(&moments[..*range.start()]);
                    *(if is_earlier { &mut lost } else { &mut invented }) += 1;
                }
                images += 1;
                kept_images += u64::from(first.is_some());
                rolled_back += u64::from(*range.start() < last_kept);
            }
        }
        check_names(&rig).await;
    }
    println!(
        "{rounds} histories of {acknowledged} acknowledged operations, {images} images, \
         {kept_images} after something was kept, {rolled_back} before the last: \
         {lost} lost, {invented} invented"
    );
    assert_eq!((lost, invented), (0, 0));
    assert!(kept_images > 0);
}

/// A disk that does not even contain an empty cache.
fn try_open(disk: &SimDisk, clock: &Arc<SimClock>, boot: u128) -> Option<Cache> {
    use larder_io::Disk;
    let is_there = disk.open("larder-cache", larder_io::OpenMode::Existing).is_ok();
    is_there.then(|| open(disk, clock, boot))
}
