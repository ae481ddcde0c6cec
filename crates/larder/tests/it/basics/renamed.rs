//! Files, and their directories, that are renamed while they are open, written and flushed.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Place, open_new};

/// Another thread closes a copy of the descriptor again and again, as a process does that inherited
/// one: each close sends what is unsent, also in the middle of a rename.
pub(super) fn open_files_stay_open(place: &Place) {
    let rounds = std::env::var("LARDER_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    for _ in 0..rounds {
        rename_an_open_file(place);
        place.nothing_else_is_left(&["else"]);
        fs::remove_dir_all(place.at("else")).unwrap();
    }
}

fn rename_an_open_file(place: &Place) {
    let [one, two, dir] = ["one", "two", "dir"].map(|name| place.at(name));
    let mut file = open_new(&one);
    let (inherited, is_over) = (file.try_clone().unwrap(), AtomicBool::new(false));
    let text = std::thread::scope(|scope| {
        let _end = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(inherited.try_clone().unwrap());
            }
        });
        let mut text = String::new();
        let mut steps = || {
            file.write_all(b"before, ").map_err(|error| ("a write", error))?;
            fs::rename(&one, &two).map_err(|error| ("a rename", error))?;
            file.write_all(b"after, ").map_err(|error| ("a write after it", error))?;
            fs::create_dir(&dir).map_err(|error| ("making a directory", error))?;
            fs::rename(&two, dir.join("three")).map_err(|error| ("a move", error))?;
            file.write_all(b"elsewhere, ").map_err(|error| ("a write after it", error))?;
            fs::rename(&dir, place.at("else")).map_err(|error| ("the directory's", error))?;
            file.write_all(b"and its directory.").map_err(|error| ("a last write", error))?;
            file.seek(SeekFrom::Start(0)).map_err(|error| ("a seek", error))?;
            file.read_to_string(&mut text).map_err(|error| ("a read", error))
        };
        let done = steps();
        is_over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|(what, error)| panic!("{}: {what}: {error}", place.who));
        text
    });
    assert_eq!(text, "before, after, elsewhere, and its directory.", "{}", place.who);
    drop((file, inherited));
    assert_eq!(fs::read_to_string(place.there.join("else/three")).unwrap(), text, "{}", place.who);
}
