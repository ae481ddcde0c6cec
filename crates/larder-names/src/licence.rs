//! When this machine may answer for changes of names.

use larder_vfs::Remote;

/// Which permission this machine has to answer. Each of these suffices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Licence {
    /// The mount's user has declared that no other client changes names in the export
    /// (`-o exclusive`). What is held of them is true then whether the server answers or not.
    pub sole: bool,
    /// The server excludes other clients from a directory while names in it are changed here: it
    /// is asked for that at the first change ([`Remote::exclude`]).
    pub leased: bool,
    /// The mount's user permits it while the server is out of reach (`-o offline`), whatever the
    /// class of a file. Changes that other clients make during that time are found when the server
    /// is back.
    pub offline: bool,
}

impl Licence {
    /// Whether names may be changed here at any time.
    pub(crate) fn answers(self) -> bool {
        self.sole || self.leased || self.offline
    }

    /// Whether this machine answers in the server's place, because that is out of reach.
    pub(crate) fn is_away(self, remote: &dyn Remote) -> bool {
        (self.sole || self.offline) && !remote.reachable()
    }

    /// Whether that holds for classes that promise more than this machine keeps, too.
    pub(crate) fn is_kept_enough(self, remote: &dyn Remote) -> bool {
        self.offline && !remote.reachable()
    }

    /// Whether names may be changed here now; with leases, in directories that are leased.
    pub(crate) fn holds(self, remote: &dyn Remote) -> bool {
        self.sole || self.leased || self.is_away(remote)
    }
}
