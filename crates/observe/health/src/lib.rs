//! Rules that turn readings of a node into findings.
