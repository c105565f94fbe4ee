//! Metrics of network cards: EFA under AWS's names, InfiniBand under those of node_exporter.

use super::table;

/// A port of a card.
pub const PORT_LABELS: &[&str] = &["device", "port", "Hostname"];

table! { NETWORK:
    EFA_ALLOC_PD_ERR "node_amazonefa_alloc_pd_err" Counter PORT_LABELS
        "Number of allocations PD errors"
    EFA_ALLOC_UCONTEXT_ERR "node_amazonefa_alloc_ucontext_err" Counter PORT_LABELS
        "Number of allocations UContext errors"
    EFA_CMDS_ERR "node_amazonefa_cmds_err" Counter PORT_LABELS
        "Number of commands errors"
    EFA_COMPLETED_CMDS "node_amazonefa_completed_cmds" Counter PORT_LABELS
        "Number of completed commands"
    EFA_CREATE_AH_ERR "node_amazonefa_create_ah_err" Counter PORT_LABELS
        "Number of create AH errors"
    EFA_CREATE_CQ_ERR "node_amazonefa_create_cq_err" Counter PORT_LABELS
        "Number of create CQ errors"
    EFA_CREATE_QP_ERR "node_amazonefa_create_qp_err" Counter PORT_LABELS
        "Number of create qp errors"
    EFA_IMPAIRED_REMOTE_CONN_EVENTS "node_amazonefa_impaired_remote_conn_events" Counter PORT_LABELS
        "Number of EFA SRD connections entered an impaired state, resulting in a reduced throughput rate limit."
    EFA_KEEP_ALIVE_RCVD "node_amazonefa_keep_alive_rcvd" Counter PORT_LABELS
        "Number of keep-alive packets received"
    EFA_LIFESPAN "node_amazonefa_lifespan" Counter PORT_LABELS
        "Lifespan of the port"
    EFA_MMAP_ERR "node_amazonefa_mmap_err" Counter PORT_LABELS
        "Number of mmap errors"
    EFA_NO_COMPLETION_CMDS "node_amazonefa_no_completion_cmds" Counter PORT_LABELS
        "Number of commands with no completion"
    EFA_RDMA_READ_BYTES "node_amazonefa_rdma_read_bytes" Counter PORT_LABELS
        "Number of bytes read with RDMA"
    EFA_RDMA_READ_RESP_BYTES "node_amazonefa_rdma_read_resp_bytes" Counter PORT_LABELS
        "Number of read responses bytes with RDMA"
    EFA_RDMA_READ_WR_ERR "node_amazonefa_rdma_read_wr_err" Counter PORT_LABELS
        "Number of read write errors with RDMA"
    EFA_RDMA_READ_WRS "node_amazonefa_rdma_read_wrs" Counter PORT_LABELS
        "Number of read rs with RDMA"
    EFA_RDMA_WRITE_BYTES "node_amazonefa_rdma_write_bytes" Counter PORT_LABELS
        "Number of bytes wrote with RDMA"
    EFA_RDMA_WRITE_RECV_BYTES "node_amazonefa_rdma_write_recv_bytes" Counter PORT_LABELS
        "Number of bytes wrote and received with RDMA"
    EFA_RDMA_WRITE_WR_ERR "node_amazonefa_rdma_write_wr_err" Counter PORT_LABELS
        "Number of bytes wrote wr with error RDMA"
    EFA_RDMA_WRITE_WRS "node_amazonefa_rdma_write_wrs" Counter PORT_LABELS
        "Number of bytes wrote wrs RDMA"
    EFA_RECV_BYTES "node_amazonefa_recv_bytes" Counter PORT_LABELS
        "Number of bytes recv bytes"
    EFA_RECV_WRS "node_amazonefa_recv_wrs" Counter PORT_LABELS
        "Number of bytes recv wrs"
    EFA_REG_MR_ERR "node_amazonefa_reg_mr_err" Counter PORT_LABELS
        "Number of reg_mr errors"
    EFA_RETRANS_BYTES "node_amazonefa_retrans_bytes" Counter PORT_LABELS
        "Number of efa_srd bytes retransmitted"
    EFA_RETRANS_PKTS "node_amazonefa_retrans_pkts" Counter PORT_LABELS
        "Number of efa_srd packets retransmitted"
    EFA_RETRANS_TIMEOUT_EVENTS "node_amazonefa_retrans_timeout_events" Counter PORT_LABELS
        "Number of times SRD traffic reached timeout and required network path change"
    EFA_RX_BYTES "node_amazonefa_rx_bytes" Counter PORT_LABELS
        "Number of bytes received"
    EFA_RX_DROPS "node_amazonefa_rx_drops" Counter PORT_LABELS
        "Number of packets droped"
    EFA_RX_PKTS "node_amazonefa_rx_pkts" Counter PORT_LABELS
        "Number of packets received"
    EFA_SEND_BYTES "node_amazonefa_send_bytes" Counter PORT_LABELS
        "Number of bytes send"
    EFA_SEND_WRS "node_amazonefa_send_wrs" Counter PORT_LABELS
        "Number of wrs send"
    EFA_SUBMITTED_CMDS "node_amazonefa_submitted_cmds" Counter PORT_LABELS
        "Number of submitted commands"
    EFA_TX_BYTES "node_amazonefa_tx_bytes" Counter PORT_LABELS
        "Number of bytes transmitted"
    EFA_TX_PKTS "node_amazonefa_tx_pkts" Counter PORT_LABELS
        "Number of packets transmitted"
    EFA_UNRESPONSIVE_REMOTE_EVENTS "node_amazonefa_unresponsive_remote_events" Counter PORT_LABELS
        "Number of times SRD connection remote was unresponsive"
    IB_PORT_DATA_TRANSMITTED_BYTES_TOTAL "node_infiniband_port_data_transmitted_bytes_total" Counter PORT_LABELS
        "Bytes sent."
    IB_PORT_DATA_RECEIVED_BYTES_TOTAL "node_infiniband_port_data_received_bytes_total" Counter PORT_LABELS
        "Bytes received."
    IB_PORT_PACKETS_TRANSMITTED_TOTAL "node_infiniband_port_packets_transmitted_total" Counter PORT_LABELS
        "Packets sent."
    IB_PORT_PACKETS_RECEIVED_TOTAL "node_infiniband_port_packets_received_total" Counter PORT_LABELS
        "Packets received."
    IB_PORT_TRANSMIT_WAIT_TOTAL "node_infiniband_port_transmit_wait_total" Counter PORT_LABELS
        "Ticks in which there was data to send and no credit for it."
    IB_PORT_ERRORS_RECEIVED_TOTAL "node_infiniband_port_errors_received_total" Counter PORT_LABELS
        "Packets with errors received."
    IB_PORT_DISCARDS_TRANSMITTED_TOTAL "node_infiniband_port_discards_transmitted_total" Counter PORT_LABELS
        "Packets that could not be sent."
    IB_SYMBOL_ERROR_TOTAL "node_infiniband_symbol_error_total" Counter PORT_LABELS
        "Minor errors of the physical link."
    IB_LINK_DOWNED_TOTAL "node_infiniband_link_downed_total" Counter PORT_LABELS
        "Times that the link went down."
    IB_LINK_ERROR_RECOVERY_TOTAL "node_infiniband_link_error_recovery_total" Counter PORT_LABELS
        "Times that the link recovered by itself."
    IB_LOCAL_LINK_INTEGRITY_ERRORS_TOTAL "node_infiniband_local_link_integrity_errors_total" Counter PORT_LABELS
        "Times that errors of the link passed their limit."
    IB_PORT_CONSTRAINT_ERRORS_TRANSMITTED_TOTAL "node_infiniband_port_constraint_errors_transmitted_total" Counter PORT_LABELS
        "Packets that the port may not send."
    IB_OUT_OF_SEQUENCE_TOTAL "node_infiniband_out_of_sequence_total" Counter PORT_LABELS
        "Packets received out of order."
    IB_PACKET_SEQUENCE_ERR_TOTAL "node_infiniband_packet_sequence_err_total" Counter PORT_LABELS
        "Negative acknowledgements for packets out of order."
    IB_LOCAL_ACK_TIMEOUT_ERR_TOTAL "node_infiniband_local_ack_timeout_err_total" Counter PORT_LABELS
        "Times that an acknowledgement did not come in time."
    IB_ROCE_ADP_RETRANS_TOTAL "node_infiniband_roce_adp_retrans_total" Counter PORT_LABELS
        "Packets sent again by adaptive retransmission."
    IB_STATE_ID "node_infiniband_state_id" Gauge PORT_LABELS
        "State of the port: 4 is active."
    IB_RATE "node_infiniband_rate_bytes_per_second" Gauge PORT_LABELS
        "Rate of the port."
}
