//! `larder bench compare`

use std::process::ExitCode;

use anyhow::{Result, bail};
use larder_bench::rivals::{METHOD, RIVALS, Rival};

use super::run::{Plan, ours};

/// Arguments of `larder bench compare`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Measures what `larder bench run` measures without --target, and beside it the installed \
rivals: sshfs, rclone, juicefs, gluster. Their servers run where ours does, behind a link of \
the same shape, and end with the run. Rivals that cannot take part are reported, with the \
reason and how to install them, and recorded. Needs root.\n\nExample:\n  \
larder bench compare fscache badros --size smoke"
)]
pub(crate) struct Args {
    /// A rival to include, if it is installed; may be repeated [default: all]
    #[arg(long = "rival", value_name = "NAME")]
    rivals: Vec<String>,
    #[command(flatten)]
    pub(super) plan: Plan,
}

/// Runs the suites on our mounts and on the rivals.
///
/// # Errors
/// What prevented the measurement. A rival that is absent is part of the result.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let rivals = chosen(&args.rivals)?;
    args.plan.run(&mut |session, suite, mut record| {
        // Rivals bring servers of their own, which have the machine's disk.
        let mut stand = session.stand(suite, None)?;
        record.link = Some(stand.link().clone());
        record.method.extend(METHOD.map(str::to_owned));
        let mut targets = ours(&mut stand, suite, session.only(), &mut record)?;
        // The rivals end before the stand that carries them.
        let mut entrants = Vec::new();
        for rival in &rivals {
            match rival.start(&stand) {
                Ok(entrant) => entrants.push(entrant),
                Err(reason) => {
                    eprintln!("larder: absent: {reason}");
                    record.absent.push(reason);
                }
            }
        }
        targets.extend(entrants.iter().map(|entrant| entrant.target.clone()));
        session.measure(suite, &targets, record)
    })
}

/// The rivals with these names; all if no name is given.
fn chosen(names: &[String]) -> Result<Vec<Rival>> {
    if let Some(unknown) = names.iter().find(|name| RIVALS.iter().all(|one| one.name != **name)) {
        let known = RIVALS.map(|rival| rival.name).join(", ");
        bail!("there is no rival {unknown}: {known}");
    }
    let wanted = |rival: &Rival| names.is_empty() || names.iter().any(|name| name == rival.name);
    Ok(RIVALS.into_iter().filter(wanted).collect())
}
