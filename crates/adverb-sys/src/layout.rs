//! The table of all declarations of this crate, for the test that compares them with the C headers.
//!
//! This module is not part of the API and has no stability guarantee.

/// Returns all declarations, in the order of the modules.
pub fn items() -> impl Iterator<Item = &'static Item> {
    // A module whose table is missing here has an unused constant, which the compiler reports.
    [
        crate::ah::LAYOUT,
        crate::cm::LAYOUT,
        crate::cm::addrinfo::LAYOUT,
        crate::cm::event::LAYOUT,
        crate::cm::id::LAYOUT,
        crate::cm::route::LAYOUT,
        crate::context::LAYOUT,
        crate::cq::LAYOUT,
        crate::cq_ex::LAYOUT,
        crate::device::LAYOUT,
        crate::event::LAYOUT,
        crate::gid::LAYOUT,
        crate::ibverbs::LAYOUT,
        crate::mr::LAYOUT,
        crate::mw::LAYOUT,
        crate::pd::LAYOUT,
        crate::port::LAYOUT,
        crate::qp::LAYOUT,
        crate::qp_attr::LAYOUT,
        crate::qp_ex::LAYOUT,
        crate::srq::LAYOUT,
        crate::wc::LAYOUT,
        crate::wr::LAYOUT,
    ]
    .into_iter()
    .flatten()
}

/// One declaration.
#[derive(Debug, Clone, Copy)]
pub enum Item {
    /// A struct or a union.
    Record(Record),
    /// An opaque type.
    Opaque {
        /// The tag of the C struct.
        name: &'static str,
    },
    /// An integer type that represents a C enum.
    Enumeration {
        /// The tag of the C enum.
        name: &'static str,
        /// The size in bytes.
        size: usize,
        /// Whether it has negative values.
        signed: bool,
    },
    /// A constant.
    Constant {
        /// The name of the C enumerator or macro.
        name: &'static str,
        /// The value.
        value: i128,
        /// The rdma-core release that introduced it, if that is newer than the oldest tested release.
        since: Option<&'static str>,
    },
    /// A function that the library exports.
    Function {
        /// The symbol.
        name: &'static str,
        /// Its type, as Rust source.
        ty: &'static str,
    },
}

/// A struct or a union.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// The name in Rust, which is the C tag unless `declaration` states another.
    pub name: &'static str,
    /// The record in the C headers.
    pub declaration: CDeclaration,
    /// The size in bytes.
    pub size: usize,
    /// The alignment in bytes.
    pub align: usize,
    /// The fields.
    pub fields: &'static [Field],
}

/// The declaration of a record in the C headers.
#[derive(Debug, Clone, Copy)]
pub enum CDeclaration {
    /// It is `struct NAME`.
    Struct,
    /// It is `struct NAME`. New fields are added before the old ones, so offsets are relative to its end.
    StructGrowingAtStart,
    /// It is `union NAME`.
    Union,
    /// It has no tag, but is the type of this member, such as `ibv_send_wr.wr.rdma`.
    TypeOf(&'static str),
    /// It is an anonymous union in this struct, so its members are accessed like those of the struct.
    AnonymousIn(&'static str),
}

/// A field of a record.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The name.
    pub name: &'static str,
    /// Its type, as Rust source.
    pub ty: &'static str,
    /// The offset in the record, in bytes.
    pub offset: usize,
    /// The size in bytes.
    pub size: usize,
    /// The rdma-core release that introduced it, if that is newer than the oldest tested release.
    pub since: Option<&'static str>,
}

/// Returns the release in a list of at most one.
pub(crate) const fn since(release: &[&'static str]) -> Option<&'static str> {
    match release {
        [release] => Some(release),
        _ => None,
    }
}
