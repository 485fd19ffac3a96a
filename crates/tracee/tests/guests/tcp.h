// Two ends of a TCP connection with small buffers: what the second one sends comes out of the first.
#ifndef TCP_H
#define TCP_H
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
static void tcp(int p[2]) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t n = sizeof a;
  int l = socket(AF_INET, SOCK_STREAM, 0), small = 30000;
  setsockopt(l, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  bind(l, (void *)&a, n);
  listen(l, 1);
  getsockname(l, (void *)&a, &n);
  p[1] = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(p[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  if (connect(p[1], (void *)&a, n)) abort();
  p[0] = accept(l, 0, 0);
  close(l);
}
#endif
