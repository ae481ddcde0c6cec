//! Exit codes of commands: 0 done, 1 failed, 2 wrong usage; 8 for a check that could not be made.

use std::fmt;

/// Wrong usage, explained in one line; any other failure is an [`anyhow::Error`] of another kind.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A volume could not be checked: the [`anyhow::Context`] of such a failure.
#[derive(Debug)]
pub(crate) struct NotChecked;

impl fmt::Display for NotChecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was checked")
    }
}

/// The exit code that an error means.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match () {
        () if error.is::<Usage>() => 2,
        () if error.is::<NotChecked>() => 8,
        () => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn usage_is_told_apart() {
        let usage = || Err::<(), _>(Usage("no".to_owned()));
        assert_eq!(exit_code(&usage().unwrap_err().into()), 2);
        assert_eq!(exit_code(&usage().context("with context").unwrap_err()), 2);
        assert_eq!(exit_code(&anyhow::anyhow!("other")), 1);
        assert_eq!(exit_code(&anyhow::anyhow!("other").context(NotChecked)), 8);
    }
}
