//! `larder explain`: where the bytes of a file are, and what would lose them.

use std::fs;
use std::io::Write;

use serde_json::{Value, json};

use crate::harness::{Mount, eventually, pattern, said};
use crate::memory::explained;
use crate::server::Server;
use crate::several_disks::{Disk, Volume, status};

const DAY_S: u64 = 24 * 3600;

/// What a command that takes a path says of a file.
fn text_of(mount: &Mount, command: &[&str], name: &str) -> String {
    let path = mount.path(name);
    let words: Vec<&str> = command.iter().copied().chain(path.to_str()).collect();
    let (code, text) = said(mount, &words);
    assert_eq!(code, Some(0), "{text}");
    text
}

/// A file in two memories, one on a disk, and one that is partly here and partly there; with the
/// memories going one after the other, and what the user says of their lifetimes.
#[test]
fn a_file_is_explained_by_where_its_bytes_are() {
    let mut volume = Volume::with_copies(1, 1);
    volume.enrol(&["--memory"]);
    volume.enrol(&["--memory", "--beside", "2"]);
    volume.disks[1..].iter_mut().for_each(Disk::keep_in_memory);
    volume.disks.iter_mut().for_each(Disk::start);
    let server = Server::meta(&["--engine", &volume.engine()]);
    let up = |at: usize| status(&server)["disks"][at]["state"] == "up";
    eventually("all disks are there", || (0..3).all(up));
    let rules = volume.dir.path().join("rules.toml");
    let text = "[class.twice]\nlike = 'volatile'\nshared = { copies = 2 }\n[level.shared]\nmttf = \
                '10d'\nrepair = '1h'\n";
    fs::write(&rules, text).unwrap();
    let option = format!("rules={}", rules.display());
    let mount = Mount::new(&server, &[&option, "class=twice"]);
    let edited = Mount::new(&server, &[]);
    fs::write(mount.path("both"), pattern(1, 10_000)).unwrap();
    fs::write(edited.path("disk"), pattern(2, 5000)).unwrap();
    fs::write(mount.path("mixed"), pattern(3, 4096)).unwrap();
    let mut file = fs::File::options().append(true).open(edited.path("mixed")).unwrap();
    file.write_all(&pattern(4, 100)).unwrap();
    drop(file);

    let both = explained(&mount, "both");
    assert_eq!((&both["durable"]["level"], &both["copies"]), (&json!("shared"), &json!(2)));
    let place = &both["places"][0];
    assert_eq!((&place["bytes"], &place["disks"]), (&json!(10_000), &json!([2, 3])), "{both}");
    // 240 hours squared, over twice one hour.
    assert_eq!(both["mean_time_to_loss_s"], 28_800 * 3600, "{both}");
    let promised = both["levels"].as_array().unwrap().last().unwrap();
    assert_eq!((&promised["level"], &promised["copies"]), (&json!("shared"), &json!(2)));
    assert_eq!(promised["mean_time_to_loss_s"], 28_800 * 3600);
    let disk = explained(&mount, "disk");
    assert_eq!((&disk["durable"]["level"], &disk["copies"]), (&json!("durable"), &json!(1)));
    assert_eq!(disk["places"][0]["disks"], json!([1]));
    assert_eq!(disk["mean_time_to_loss_s"], 25 * 365 * DAY_S);
    let mixed = explained(&mount, "mixed");
    assert_eq!(mixed["durable"]["level"], "shared");
    let bytes = |at: usize| mixed["places"][at]["bytes"].as_u64().unwrap();
    assert_eq!((bytes(0) + bytes(1), mixed["places"].as_array().unwrap().len()), (4196, 2));

    let text = text_of(&mount, &["explain"], "both");
    assert!(
        text.contains("9.77 KiB shared in 2 copies, lost by a restart of all of memory disks 2, 3"),
        "{text}"
    );
    assert!(text.contains("lasts    3 years on average as it is now"), "{text}");
    let text = text_of(&mount, &["class", "explain"], "both");
    assert!(text.contains("  shared   within 30 s in 2 copies; lost by a restart of 2 "), "{text}");

    volume.disks[2].kill();
    eventually("one copy is left", || explained(&mount, "both")["copies"] == 1);
    let both = explained(&mount, "both");
    assert_eq!(both["places"][0]["disks"], json!([2]), "{both}");
    assert_eq!(both["mean_time_to_loss_s"], 10 * DAY_S);
    volume.disks[1].kill();
    volume.disks[1].start();
    volume.disks[2].start();
    eventually("it is lost", || explained(&mount, "both")["durable"]["level"] == "lost");
    let both = explained(&mount, "both");
    assert_eq!((&both["copies"], &both["mean_time_to_loss_s"]), (&json!(0), &Value::Null));
    assert!(text_of(&mount, &["explain"], "both").contains("  where    9.77 KiB lost\n"));
    assert_eq!(explained(&mount, "disk")["durable"]["level"], "durable");
}
