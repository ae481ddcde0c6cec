//! Writes reports of made-up runs, to see how they look: `report_sample DIRECTORY`. Nothing in them
//! was measured. The report in `odd` has names that no program should choose, the one in `empty` is
//! of no run.

use std::path::Path;

use anyhow::{Context, Result};

#[path = "../tests/it/made_up.rs"]
mod made_up;

fn main() -> Result<()> {
    let directory = std::env::args_os().nth(1).context("usage: report_sample DIRECTORY")?;
    let directory = Path::new(&directory);
    for (name, runs) in [("", made_up::all()), ("odd", made_up::odd()), ("empty", Vec::new())] {
        let written = larder_bench::report::write(&runs, &[], &directory.join(name))?;
        println!("{}", written.html.display());
    }
    Ok(())
}
