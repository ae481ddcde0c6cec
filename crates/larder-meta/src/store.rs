//! The volume as records of an [`crate::engine::Engine`].

pub(crate) mod records;
pub(crate) mod txn;

pub(crate) use records::{Record, key};
pub(crate) use txn::Txn;
