//! Options of an export of a directory.

/// Whose identity is not taken at its word (exports(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// The superuser acts as the anonymous user, and so does the superuser's group.
    #[default]
    Root,
    /// Nobody's.
    None,
    /// Everybody acts as the anonymous user.
    All,
}

/// How a directory is exported.
#[derive(Clone, Copy, Debug)]
pub struct LocalOptions {
    /// Whose identity is not taken at its word.
    pub squash: Squash,
    /// The anonymous user.
    pub anonymous_uid: u32,
    /// The anonymous user's group.
    pub anonymous_gid: u32,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether changes of names and attributes are on the disk before they are answered, as the
    /// RFC asks (3.3.8 and others). Without it (exports(5): `async`) a crash of the server may
    /// undo what was answered. Data is not concerned: for it the caller says how durable it is
    /// to be.
    pub durable_names: bool,
    /// Whether other processes of this machine change files of the directory. Where its file
    /// system has leases it is found out for each change whether they can have done so;
    /// elsewhere this is believed.
    pub shared: bool,
}

impl Default for LocalOptions {
    fn default() -> LocalOptions {
        LocalOptions {
            squash: Squash::Root,
            anonymous_uid: 65_534,
            anonymous_gid: 65_534,
            read_only: false,
            durable_names: true,
            shared: false,
        }
    }
}
