//! Writes a file whose bytes can be made again, and gives it class `generated` on a mount of
//! larder; on any other file system it is a file as usual:
//! `cargo run -p larder-io --example hint -- FILE`.

use std::fs::File;
use std::io::{Error, Result, Write};

use larder_io::class_hint;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).ok_or_else(|| Error::other("usage: hint FILE"))?;
    let mut file = File::create(path)?;
    // It holds for what is written by this open file from now on. One that is refused is no failure
    // of the program: the file has the class that it has without a hint.
    if let Err(error) = class_hint::ask(&file, "generated") {
        eprintln!("no class for this file: {error}");
    }
    file.write_all(b"a frame that can be rendered again\n")?;
    // Waits for what the class says: here for this machine's disk, and not for the server's.
    file.sync_all()
}
