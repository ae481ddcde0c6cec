//! `larder bench compare`

use std::process::ExitCode;

use anyhow::{Result, bail};
use larder_bench::rivals::{METHOD, RIVALS, Rival};

use super::run::{Plan, ours};

/// Arguments of `larder bench compare`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What `larder bench run` measures without --target, and beside it the rivals that are installed: sshfs, \
rclone, juicefs, gluster. Their servers run where ours does, behind a link of the same shape, and go with the run. Those \
that cannot take part are told, with the reason and how to install them, and recorded. Needs root.\n\nExample:\n  \
larder bench compare fscache badros --size smoke"
)]
pub(crate) struct Args {
    /// A rival that takes part, if it is installed; may be repeated [default: all]
    #[arg(long = "rival", value_name = "NAME")]
    rivals: Vec<String>,
    #[command(flatten)]
    pub(super) plan: Plan,
}

/// Runs the suites on us and on them.
///
/// # Errors
/// What kept it from measuring. A rival that is absent is part of the result.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let rivals = chosen(&args.rivals)?;
    args.plan.run(&mut |session, suite, mut record| {
        let mut stand = session.stand(suite)?;
        record.link = Some(stand.link().clone());
        record.method.extend(METHOD.map(str::to_owned));
        let mut targets = ours(&mut stand, suite, &mut record)?;
        // They go before the stand on which they are.
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

/// The rivals of these names; all if there are none.
fn chosen(names: &[String]) -> Result<Vec<Rival>> {
    if let Some(unknown) = names.iter().find(|name| RIVALS.iter().all(|one| one.name != **name)) {
        let known = RIVALS.map(|rival| rival.name).join(", ");
        bail!("there is no rival {unknown}: {known}");
    }
    let wanted = |rival: &Rival| names.is_empty() || names.iter().any(|name| name == rival.name);
    Ok(RIVALS.into_iter().filter(wanted).collect())
}
